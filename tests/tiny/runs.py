"""Runs of the tiny experiment and what they leave."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from rich.console import Console

from runner.run import run_experiment
from runner.run_directory import RunDirectory
from runner.screen import Screen
from tests.tiny.configs import tiny


def run(folder: Path, **changes: Any) -> list[str]:
    """Runs it in `folder` and returns the lines on the screen."""
    file = io.StringIO()
    screen = Screen(Console(file=file, width=300, highlight=False))
    run_experiment(tiny(run_dir=str(folder), **changes), screen=screen)
    return file.getvalue().splitlines()


def directory(folder: Path, number: int = 1) -> RunDirectory:
    """Returns the directory of a run in `folder`."""
    return RunDirectory(folder / f"{number:03d}")


def saved(folder: Path, name: str, number: int = 1) -> Any:
    """Returns a value in the newest checkpoint of a run in `folder`."""
    return tf.train.load_variable(str(directory(folder, number).checkpoints), name)


def written(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns tag -> steps and values in the event files of a folder."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(path.glob("events.*")):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                scalar = (
                    float(tf.make_ndarray(value.tensor))
                    if value.HasField("tensor")
                    else value.simple_value
                )
                found.setdefault(value.tag, []).append((event.step, scalar))
    return found
