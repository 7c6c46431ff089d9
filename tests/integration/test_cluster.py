"""A cluster on this machine: its tasks as processes, and what happens when they are killed.

Starting five TensorFlow processes costs much: one test shows what a cluster promises, and `make
soak` runs the others. What one process can show is in tests/unit/cluster.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.cluster.local import free_addresses
from tests.support.forked import ROOT

from .conftest import Command, wait_for

TINY = "+experiment=tiny"
LOCAL = ("cluster=local", "cluster.recovery_wait_secs=0.2", "cluster.grace_secs=20")
SLOW = "data._target_=tests.samples.odd.Slow"
ENDLESS = (SLOW, "train.steps=100000", "tracking=none")
STREAMED = "keras.metrics.SparseCategoricalAccuracy"
CHECKPOINT = "runs/tiny/001/checkpoints/checkpoint"


class Watched:
    """A running command whose lines are read as they come."""

    def __init__(self, process: Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))

    def wait(self, pattern: str, count: int = 1, seconds: float = 90) -> re.Match[str]:
        """Waits until so many lines match, and returns the match of the last of these."""
        deadline = time.monotonic() + seconds
        while True:
            found = [match for line in self.lines if (match := re.fullmatch(pattern, line))]
            if len(found) >= count:
                return found[count - 1]
            assert time.monotonic() < deadline, "\n".join([pattern, *self.lines])
            assert self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.05)

    def count(self, pattern: str) -> int:
        """Returns how many lines match."""
        return sum(re.fullmatch(pattern, line) is not None for line in list(self.lines))

    def pid(self, task: str, count: int = 1) -> int:
        return int(self.wait(rf"\[{task}\] process (\d+)", count)[1])

    def pids(self) -> list[int]:
        found = (re.fullmatch(r"\[[^]]+\] process (\d+)", line) for line in list(self.lines))
        return [int(match[1]) for match in found if match]

    def end(self) -> int:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines += self.process.stderr.read().splitlines()
        self._reader.join()
        return self.process.wait(timeout=60)

    def ends_well(self, command: Command) -> None:
        """Waits for the end of a run of which no process is left."""
        assert self.end() == 0, "\n".join(self.lines)
        assert living(self.pids()) == []
        assert command.record("tiny/001").status == "FINISHED"


WARM = (
    "model._target_=tests.samples.odd.Plain",
    "scaffolds={body: {variables: {include: [body/*]}, checkpoint: pretrained}}",
    "restoration.verify=true",
)


def pretrained(folder: Path) -> Path:
    """Makes the checkpoint of WARM."""
    source = folder / "pretrained"
    with tf.Graph().as_default(), tf.Session() as session:
        kernel = tf.get_variable("body/kernel", [8, 4])
        bias = tf.get_variable("body/bias", [4])
        session.run([kernel.initializer, bias.initializer])
        tf.train.Saver().save(session, str(source / "model"), write_meta_graph=False)
    return source


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_cluster_whose_tasks_are_killed_is_one_run_with_the_metrics_of_all(
    make_command: Callable[..., Command], fresh: bool
) -> None:
    command = make_command(fresh)
    source = pretrained(command.folder)
    shape = (f"cluster.evaluator={fresh}", "cluster.restarts=1")
    every = ("train.log_every=10", "train.evaluate_every=1000", "train.checkpoint_every=20")
    # State of Keras's, which all tasks build and the chief and the evaluator alone keep.
    more = ("optimizer=adamw", f"+metrics.streamed._target_={STREAMED}")
    given = (TINY, *LOCAL, *WARM, SLOW, *shape, "train.steps=120", *every, *more)
    watched = Watched(command.start(*given))
    wait_for(command.folder / CHECKPOINT, watched.process)
    shutil.rmtree(source)
    os.kill(watched.pid("chief"), signal.SIGKILL)
    watched.wait(r"\[chief\] was killed by SIGKILL; it is started again, 0 times left")
    watched.wait(r"\[chief\]   restores this run's checkpoint, and reads no pretrained one")
    # Other workers' steps may be in flight when a checkpoint is saved, or the last step taken.
    assert 20 <= int(watched.wait(r"\[chief\] cluster: trains from step ([1-9]\d*)")[1]) < 120
    os.kill(watched.pid("ps 0"), signal.SIGKILL)
    watched.wait(r"\[ps 0\] serves", 2)
    watched.ends_well(command)
    assert 120 <= command.steps("tiny/001")[-1] <= 123
    (run,) = command.tracked("tiny")
    assert run.info.status == "FINISHED"

    def history(name: str) -> list[tuple[int, float]]:
        found = command.client().get_metric_history(run.info.run_id, name)
        return [(each.step, each.value) for each in found]

    recorded = [step for step, _ in history("train/loss")]
    assert recorded == sorted({*recorded})
    assert recorded[-1] >= 110
    streamed, accuracy = (dict(history(f"validation/{name}")) for name in ("streamed", "accuracy"))
    assert streamed == pytest.approx(accuracy)
    # Another worker's last step may come between the evaluation and the checkpoint.
    assert 120 <= history("validation/loss")[-1][0] <= command.steps("tiny/001")[-1]
    # What the worker has sent, and the chief not recorded, is lost with the server.
    assert history("worker0/train/loss")[-1][0] >= 100
    if fresh:
        assert history("evaluator/validation/loss")[-1] == history("validation/loss")[-1]


def held_back(command: Command, steps: int, *more: str) -> Watched:
    """Starts a run whose batches come slowly as long as there is a file `slow`."""
    pretrained(command.folder)
    (command.folder / "slow").touch()
    data = "data._target_=tests.samples.odd.Held"
    shape = ("cluster.ps=2", f"train.steps={steps}")
    rare = ("train.evaluate_every=100000", "tracking=none")
    return Watched(command.start(TINY, *LOCAL, *WARM, data, *shape, *rare, *more))


def ends_well_after(watched: Watched, command: Command, steps: int) -> None:
    watched.ends_well(command)
    # Other workers' steps may be in flight when the last one is taken.
    assert 0 <= command.steps("tiny/001")[-1] - steps <= 3
    assert "Traceback" not in "\n".join(watched.lines)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_with_every_fault_ends_as_it_should(command: Command) -> None:
    # Far more than are taken before the last fault, as long as batches come slowly; and no multiple
    # of those at which is saved.
    steps = 1000
    often = ("train.log_every=1", "train.checkpoint_every=70")
    watched = held_back(command, steps, "cluster.restarts=9", *often)
    slow, evaluating = command.folder / "slow", command.folder / "evaluating"
    chief_begins = r"\[chief\] cluster: trains from step (\d+)"
    worker_begins = r"\[worker 0\] trains from step (\d+)"
    worker_steps = r"\[worker 0\] step \d+/\d+ .*"

    def kill(task: str, process: int = 1) -> None:
        os.kill(watched.pid(task, process), signal.SIGKILL)
        watched.wait(rf"\[{task}\] process \d+", process + 1)

    def begins(pattern: str, known: int) -> int:
        """Waits for one session more than were known, and returns its first step."""
        return int(watched.wait(pattern, known + 1)[1])

    # The chief, before its first checkpoint: the sources are restored under a worker that trains,
    # and may not even notice.
    watched.wait(r"\[worker 0\] step [2-9]/\d+ .*")
    kill("chief")
    assert not (command.folder / CHECKPOINT).exists()
    assert begins(chief_begins, 1) < 70
    watched.wait(worker_steps, watched.count(worker_steps) + 1)

    wait_for(command.folder / CHECKPOINT, watched.process)
    known = watched.count(worker_begins)
    kill("worker 0")
    begins(worker_begins, known)

    saved = command.steps("tiny/001")[-1]
    known = watched.count(worker_begins)
    kill("ps 1")
    assert begins(chief_begins, 2) >= saved
    assert begins(worker_begins, known) >= saved

    # A signal to the chief alone: it saves, and the worker waits for it to come back.
    known = watched.count(worker_begins)
    os.kill(watched.pid("chief", 2), signal.SIGTERM)
    watched.wait(r"\[chief\] ended with 143; it is started again, .*")
    left = command.steps("tiny/001")[-1]
    assert saved <= left < steps
    assert begins(chief_begins, 3) >= left
    assert begins(worker_begins, known) >= left

    # The chief in its last evaluation, after which nothing is saved yet.
    slow.unlink()
    wait_for(evaluating, watched.process)
    kill("chief", 3)
    evaluating.unlink()
    saved = command.steps("tiny/001")[-1]
    assert left <= saved < steps
    assert begins(chief_begins, 4) >= saved

    # A server at that time: no process can save what it held.
    wait_for(evaluating, watched.process)
    kill("ps 0")
    evaluating.unlink()
    watched.wait(r"\[chief\] ended with 137; it is started again, .*")

    # The worker while the chief evaluates: it comes back to nothing but the end.
    wait_for(evaluating, watched.process)
    known = watched.count(worker_begins)
    kill("worker 0", 2)
    assert begins(worker_begins, known) >= steps
    evaluating.unlink()
    ends_well_after(watched, command, steps)


def weights(command: Command, run: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(command.directory(run).checkpoints))
    names = [name for name in reader.get_variable_to_shape_map() if "Iterator" not in name]
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_collective_run_whose_tasks_are_killed_is_the_undisturbed_one(command: Command) -> None:
    # With dropout, whose masks differ between tasks.
    waits = ("cluster.recovery_wait_secs=0.2", "cluster.restarts=4", "tracking=none")
    saves = ("train.steps=60", "train.checkpoint_every=10", "train.evaluate_every=1000")
    given = (TINY, "cluster=collective", "cluster.workers=3", SLOW, *waits, *saves)
    ends = Watched(command.start(*given))
    assert ends.end() == 0, "\n".join(ends.lines)
    expected = weights(command, "tiny/001")
    assert expected["global_step"] == 60

    watched = Watched(command.start(*given))
    checkpoints = command.directory("tiny/002").checkpoints
    wait_for(checkpoints / "model.ckpt-10.index", watched.process)
    os.kill(watched.pid("worker 0"), signal.SIGKILL)
    watched.wait(r"\[worker 0\] was killed by SIGKILL; .*")
    watched.wait(r"\[chief\] ended with 137; .*")
    watched.wait(r"\[chief\] cluster: trains from step [1-9]\d*")
    wait_for(checkpoints / "model.ckpt-40.index", watched.process)
    os.kill(watched.pid("chief", 2), signal.SIGKILL)
    watched.wait(r"\[worker 0\] ended with 137; .*")
    watched.wait(r"\[worker 1\] trains from step [45]0")
    assert watched.end() == 0, "\n".join(watched.lines)
    assert living(watched.pids()) == []
    found = weights(command, "tiny/002")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.soak
def test_a_process_that_has_lost_another_has_no_use_for_collectives() -> None:
    ports = [address.rpartition(":")[2] for address in free_addresses(2)]
    program = ROOT / "tests" / "support" / "lost_collective.py"
    done = subprocess.run(
        [sys.executable, program, "0", *ports], capture_output=True, text=True, check=True
    )
    # Otherwise a session could continue without a restart of every task.
    lost = r"([12]) (?:Unavailable|DeadlineExceeded)Error True"
    assert re.findall(lost, done.stdout) == ["1", "2"], done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_starting_process_is_ended(
    make_command: Callable[..., Command], number: signal.Signals
) -> None:
    command = make_command(fresh=number == signal.SIGKILL)
    watched = Watched(command.start(TINY, *LOCAL, *ENDLESS))
    watched.wait(r"\[worker 0\] trains from step \d+")
    watched.wait(r"\[chief\] step \d+/.*")
    watched.process.send_signal(number)
    assert watched.end() == (130 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 40
    while left := living(watched.pids()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert command.record("tiny/001").status == "KILLED"  # It was saved, as after SIGTERM.


@pytest.mark.soak
def test_a_signal_to_all_tasks_at_once_saves_the_run(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, worker, server = free_addresses(3)
    cluster = {"chief": [chief], "worker": [worker], "ps": [server]}
    tasks = {}
    for kind in cluster:
        task = {"type": kind, "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        often = ("train.log_every=1", "train.checkpoint_every=100000")
        tasks[kind] = Watched(command.start(TINY, *ENDLESS, *often))
    tasks["worker"].wait(r"step (\d+)/100000 .*", 3)
    for watched in tasks.values():
        watched.process.terminate()
    assert {kind: watched.end() for kind, watched in tasks.items()} == dict.fromkeys(tasks, 143)
    taken = [line for line in tasks["worker"].lines if line.startswith("step ")]
    last = int(taken[-1].partition(" ")[2].partition("/")[0])
    (saved,) = command.steps("tiny/001")
    # Either may make an update more, before or after the other's last.
    assert abs(saved - last) <= 3, (saved, last)
    assert command.record("tiny/001").status == "KILLED"


TASKS = ("chief", "chief", "worker 0", "worker 1", "ps 0", "ps 0", "ps 1")
FAULTS = 25


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_goes_on_to_its_end_whatever_dies_when(command: Command) -> None:
    waits = (f"cluster.restarts={FAULTS}", "cluster.max_wait_secs=90", "cluster.workers=3")
    watched = held_back(command, 300, *waits, "train.checkpoint_every=7")
    watched.wait(r"\[worker 0\] trains from step \d+")
    generator = random.Random(0)
    for _ in range(FAULTS):
        time.sleep(generator.choice([0.05, 0.3, 0.8, 1.5, 2.5, 4.0]))
        task = generator.choice(TASKS)
        number = signal.SIGKILL
        if task == "chief" and generator.random() < 0.3:
            number = signal.SIGTERM
        pid = watched.pid(task, watched.count(rf"\[{task}\] process \d+"))
        watched.lines.append(f"{number.name} for {task}")
        with suppress(ProcessLookupError):  # The one before has ended it, or is about to.
            os.kill(pid, number)
    (command.folder / "slow").unlink()
    while watched.process.poll() is None:
        (command.folder / "evaluating").unlink(missing_ok=True)
        time.sleep(0.1)
    ends_well_after(watched, command, 300)
    # Of a signal, or of a server that is lost where no session recovers.
    codes = re.findall(r"ended with (\d+)", "\n".join(watched.lines))
    assert set(codes) <= {"143", "137"}, "\n".join(watched.lines)
