"""Runs that are forked, killed, and compared with one that never was."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

import numpy as np
import psutil
import tensorflow as tf

from runner.runs.run_directory import RunDirectory
from runner.tracking.journal import Metrics, read_lines, segments
from runner.tracking.tracking_directory import TrackingDirectory
from tests.support.forked import environment
from tests.support.runs import wait_for

from .conftest import Command, command_line


@dataclass
class Case(Command):
    """One command, run in a folder again and again, whose output goes to a file."""

    arguments: tuple[str, ...] = ()

    def start(self, *arguments: str, killed_at: int | None = None) -> subprocess.Popen[str]:
        assert self.forks is not None
        with (self.folder / "output").open("a") as output:
            process = self.forks.start(
                command_line(*self.arguments, *arguments),
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=subprocess.STDOUT,
                start_new_session=True,
                slow_saves=self.marker(SAVING) if killed_at is None else None,
                killed_at=killed_at,
            )
        self.processes.append(process)
        return process

    def code(self) -> int:
        """Runs it to its end and returns the exit code."""
        return self.start().wait()

    def output(self) -> str:
        file = self.folder / "output"
        return file.read_text() if file.exists() else ""

    def marker(self, name: str) -> Path:
        """Returns a file that marks how far a life of the run has come."""
        return self.folder / name


MakeCase: TypeAlias = Callable[..., Case]
"""Takes the name of a new folder and arguments."""

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
STARTING, STEPPING, SAVING = "starting", "stepping", "saving"


def signalled(
    case: Case, file: Path, *numbers: signal.Signals, pause: float = 0.0
) -> tuple[int, float]:
    """Sends signals once a file is there; the exit code, and the seconds from the last to it.

    The `numbers` are sent each after a `pause` in seconds.
    """
    process = case.start()
    wait_for(lambda: file.exists() or not psutil.pid_exists(process.pid), every=0.005)
    assert file.exists(), case.output()
    for number in numbers:
        time.sleep(pause)
        process.send_signal(number)
    began = time.monotonic()
    return process.wait(), time.monotonic() - began


def kill(case: Case, moment: str, delay: float, number: signal.Signals = signal.SIGKILL) -> None:
    """Starts a life of the run and ends it by a signal.

    `moment` is STARTING, STEPPING from when the first step may come, or SAVING from when a save has
    begun; `delay` is in seconds from then.
    """
    # A start that is quicker than the delay must not get to the end of the run.
    marker = case.marker(STEPPING if moment == STARTING else moment)
    marker.unlink(missing_ok=True)
    process = case.start()
    began = time.monotonic()

    def come() -> bool:
        waited = moment == STARTING and time.monotonic() - began >= delay
        return waited or marker.exists() or not psutil.pid_exists(process.pid)

    wait_for(come, every=0.005)
    if moment != STARTING:
        time.sleep(delay)
    process.send_signal(number)
    # Before the process handles SIGTERM, that ends it as SIGKILL does.
    codes = {-number} if number is signal.SIGKILL else {-number, 128 + number}
    assert process.wait() in codes, case.output()


def kill_often(
    case: Case,
    starting: float,
    stepping: float,
    kills: int,
    seed: int,
    numbers: Sequence[signal.Signals] = (signal.SIGKILL,),
) -> None:
    """Kills so many lives at random moments: half in a save, a quarter in the steps.

    `starting` is how long it takes to the first step, `stepping` how many seconds of steps all
    kills together leave behind them at most; the signals come in turn.
    """
    generator = random.Random(seed)
    longest = {STARTING: starting, STEPPING: stepping / kills, SAVING: 0.1}
    moments = [(SAVING, STARTING, SAVING, STEPPING)[index % 4] for index in range(kills)]
    generator.shuffle(moments)
    for moment, number in zip(moments, cycle(numbers), strict=False):
        kill(case, moment, generator.uniform(0.0, longest[moment]), number)


def end_anywhere(case: Case, *arguments: str, seconds: float, number: signal.Signals) -> int:
    """Runs the command and signals it after so many seconds; returns the exit code.

    SIGTERM does not end a command that is about to end by itself.
    """
    process = case.start(*arguments)
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(seconds)
        assert code == 0, case.output()
        return code
    process.send_signal(number)
    code = process.wait()
    allowed = {0, -number} if number is signal.SIGKILL else {0, -number, 128 + number}
    assert code in allowed, case.output()
    return code


def kill_anywhere(
    case: Case, lives: Mapping[str, float], kills: list[signal.Signals], generator: random.Random
) -> None:
    """Trains, evaluates and exports a run, each killed at random moments until it is done.

    Args:
      case: the command that trains.
      lives: mode -> how long it takes, in seconds.
      kills: the signals to send, which are removed; without any left, commands end by themselves.
      generator: chooses the moments.
    """
    run = case.directory("tiny/001")
    for mode, seconds in lives.items():
        code = -1
        while code != 0:
            if kills:
                moment = generator.uniform(0.0, seconds)
                code = end_anywhere(case, f"mode={mode}", seconds=moment, number=kills.pop())
            else:
                code = case.start(f"mode={mode}").wait()
                assert code == 0, case.output()
            record = run.read()
            if mode == "train" and record is not None and record.status == "FINISHED":
                break  # Killed after its end: the same command would start another run.


def history(directory: RunDirectory) -> dict[tuple[str, int], float]:
    """Returns the metrics in the journal, without those that were taken back."""
    found: dict[tuple[str, int], float] = {}
    for segment in segments(TrackingDirectory(directory.path).journal):
        after = segment.after
        if after is not None:
            found = {key: value for key, value in found.items() if key[1] <= after}
        for record, _ in read_lines(segment.path):
            if isinstance(record, Metrics):
                found.update({(n, int(record.step)): v for n, v in record.values.items()})
    return found


def delivered(case: Case, experiment: str) -> tuple[str, dict[str, list[tuple[int, float]]]]:
    """Returns the status of the experiment's only run in MLflow, and each metric's points."""
    (run,) = case.tracked(experiment)
    client = case.client()
    points = {
        name: sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }
    return run.info.status, points


def tensors(checkpoint: Path) -> dict[str, tuple[str, bytes]]:
    """Returns the type and the bytes of what a checkpoint holds, but the input's position."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    types = reader.get_variable_to_dtype_map()
    names = [name for name, dtype in types.items() if dtype != tf.variant]
    return {n: (types[n].name, np.asarray(reader.get_tensor(n)).tobytes()) for n in names}


def _predictions(export: Path) -> dict[str, bytes]:
    """Returns the bytes of what an export predicts from two examples."""
    serve = tf.saved_model.load(str(export)).signatures["serving_default"]
    inputs = {
        name: tf.reshape(
            tf.linspace(0.0, 1.0, 2 * spec.shape[1:].num_elements()), [2, *spec.shape[1:]]
        )
        for name, spec in serve.structured_input_signature[1].items()
    }
    return {name: output.numpy().tobytes() for name, output in serve(**inputs).items()}


def assert_same_model(one: Case, other: Case, experiment: str) -> None:
    """Compares the exports of two runs, each of which is in MLflow once.

    Their values are the same under the same names, and their predictions are; Keras lists the
    variables of an export in any order.
    """
    folders = [case.directory(f"{experiment}/001").export for case in (one, other)]
    first, second = (tensors(folder / "variables" / "variables") for folder in folders)
    assert first.pop(_OBJECT_GRAPH)[0] == second.pop(_OBJECT_GRAPH)[0]
    assert first == second
    expected, predicted = map(_predictions, folders)
    assert expected == predicted
    for case in (one, other):
        (run,) = case.tracked(experiment)
        assert run.outputs is not None
        assert len(run.outputs.model_outputs) == 1, case.output()


def assert_same(one: Case, other: Case, experiment: str, run: str = "001") -> None:
    """Compares what two runs leave, bit for bit."""
    first, second = (each.directory(f"{experiment}/{run}") for each in (one, other))
    assert first.load_record().status == second.load_record().status == "FINISHED", other.output()
    assert first.load_record().objective == second.load_record().objective
    for folders in ((first.checkpoints, second.checkpoints), (first.best, second.best)):
        expected, found = (tensors(each) for each in folders)
        assert expected == found
    assert json.loads(first.best_record.read_text()) == json.loads(second.best_record.read_text())
    assert history(first) == history(second)
    status, points = delivered(one, experiment)
    assert (status, points) == delivered(other, experiment)
    assert status == "FINISHED"
    for name, values in points.items():
        steps = [step for step, _ in values]
        assert len(steps) == len(set(steps)), name
    assert {(n, s): v for n, each in points.items() for s, v in each} == history(first)
