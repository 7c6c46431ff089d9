"""Runs of the tiny experiment and what they leave."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from rich.console import Console

from runner.cluster.chief import coordinator_of
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.console import Screen
from runner.lifecycle import perform
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.training.context import RunContext, TrialWatch
from runner.training.experiment import Experiment
from tests.support.configs import tiny


class Runs:
    """Runs tiny experiments in one folder; `changes` are fields of every configuration."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        self._file = io.StringIO()

    def config(self, **changes: Any) -> RunConfig:
        return tiny(**{"run_dir": str(self.folder), **self.changes, **changes})

    def start(
        self,
        config: RunConfig,
        watch: TrialWatch | None = None,
        *,
        from_run_dir: bool = False,
        print_next_commands: bool = False,
    ) -> float | None:
        """Runs a configuration and returns the objective; `lines` are those on the screen."""
        self._file = io.StringIO()
        screen = Screen(Console(file=self._file, width=300, highlight=False))
        context = RunContext(
            from_run_dir=from_run_dir,
            print_next_commands=print_next_commands,
            screen=screen,
            watch=watch or TrialWatch(),
        )
        return perform(Experiment(config, context, coordinator_of(config))).objective

    def run(self, **changes: Any) -> tuple[float, list[str]]:
        """Returns the objective and the lines on the screen."""
        objective = self.start(self.config(**changes))
        assert objective is not None
        return objective, self.lines()

    def shown(self, *, from_run_dir: bool = False, **changes: Any) -> list[str]:
        """Returns the lines on the screen of a run that may have no objective."""
        self.start(self.config(**changes), from_run_dir=from_run_dir)
        return self.lines()

    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()

    def copy(self, folder: Path) -> Runs:
        """Copies all runs into another folder, in which the same configuration continues."""
        shutil.copytree(self.folder, folder)
        return Runs(folder, **self.changes)

    def directory(self, number: int = 1) -> RunDirectory:
        return RunDirectory(self.folder / f"{number:03d}")

    def record(self, number: int = 1) -> RunRecord:
        return self.directory(number).load_record()

    def files(self) -> dict[Path, bytes]:
        """Returns what is in the files of all runs."""
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def steps(self, kind: str = "checkpoints", number: int = 1) -> list[int]:
        files = (self.directory(number).path / kind).glob("*.index")
        return sorted(int(file.stem.rpartition("-")[2]) for file in files)

    def values(self, number: int = 1) -> dict[str, np.ndarray]:
        reader = tf.train.load_checkpoint(str(self.directory(number).checkpoints))
        names = [name for name in reader.get_variable_to_shape_map() if "Iterator" not in name]
        return {name: reader.get_tensor(name) for name in names if name != "iterator"}

    def count(self) -> int:
        return len([path for path in self.folder.glob("*") if path.name.isdigit()])


def run(folder: Path, **changes: Any) -> list[str]:
    """Runs the tiny experiment in `folder` and returns the lines on the screen."""
    return Runs(folder).shown(**changes)


def directory(folder: Path, number: int = 1) -> RunDirectory:
    """Returns the directory of a run in `folder`."""
    return Runs(folder).directory(number)


def saved(folder: Path, name: str, number: int = 1) -> Any:
    """Returns a value in the newest checkpoint of a run in `folder`."""
    return tf.train.load_variable(str(directory(folder, number).checkpoints), name)


def written(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns tag -> steps and values in the event files of a folder, except for strings."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(path.glob("events.*")):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if tf.dtypes.as_dtype(value.tensor.dtype or tf.float32) == tf.string:
                    continue
                scalar = (
                    float(tf.make_ndarray(value.tensor))
                    if value.HasField("tensor")
                    else value.simple_value
                )
                scalars.setdefault(value.tag, []).append((event.step, scalar))
    return scalars


def wait_for(condition: Callable[[], object], seconds: float = 60.0, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(every)


def disturbed(name: str, **arguments: Any) -> dict[str, Any]:
    """Returns `hooks` with one of `tests.samples.hooks`."""
    return {"disturb": {"_target_": f"tests.samples.hooks.{name}", **arguments}}


def evaluations(lines: list[str]) -> list[int]:
    """Returns the steps of the evaluations that the screen shows."""
    return [int(line.split()[1]) for line in lines if "  validation  " in line]


def short(**changes: Any) -> TrainConfig:
    """Returns a training of 20 steps, with some fields changed."""
    return TrainConfig(**{"steps": 20, "log_every": 5, "evaluate_every": 10, **changes})


def warm(checkpoint: str) -> dict[str, ScaffoldConfig]:
    """Returns `scaffolds` with the tiny model's body, frozen, from a checkpoint."""
    return {"body": ScaffoldConfig(VariablesConfig(["body/*"]), checkpoint, trainable=False)}
