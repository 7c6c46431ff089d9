"""Checks the `_target_` entries of all trials before the first one starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.checkpoints import files
from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import LATEST, resolve
from runner.checkpoints.open import recognise
from runner.config.choices import MLFLOW_SCHEMES, Resume
from runner.config.fingerprint import EXPERIMENT, in_scaffold
from runner.config.instantiation import check_signature
from runner.config.schema import MODEL_SWITCHES, RunConfig, ScaffoldConfig
from runner.errors import CheckpointError, ConfigError, Problem
from runner.runs.run_directory import runs
from runner.sweeps.points import ComposedPoint, Point, placed
from runner.system.imports import import_tensorflow, without_collections


def check_targets(composed: Sequence[ComposedPoint]) -> None:
    """Checks that the targets of all trials are there and take what arguments they are given.

    Imports them, and with them TensorFlow. What only calling them can tell is not found.

    Raises:
      ConfigError: with every problem of every trial.
    """
    first = "tensorflow" not in sys.modules
    import_tensorflow()
    with without_collections() if first else nullcontext():
        problems = _all_problems(composed)
    if problems:
        raise ConfigError(
            *(placed(problem, where, len(composed)) for problem, where in problems.items())
        )


def _all_problems(composed: Sequence[ComposedPoint]) -> dict[Problem, list[Point]]:
    known: dict[str, tuple[Problem, ...]] = {}
    problems: dict[Problem, list[Point]] = {}
    for each in composed:
        for key, node in _nodes(each.config):
            shape = json.dumps([key, _shape(node)])
            if shape not in known:
                known[shape] = _target_problems(key, node)
            for problem in known[shape]:
                problems.setdefault(problem, []).append(each.point)
    return problems


def _nodes(config: RunConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "data", config.data
    yield "model", {key: each for key, each in config.model.items() if key not in MODEL_SWITCHES}
    yield "loss", config.loss
    yield "optimizer", config.optimizer
    for group, nodes in (("metrics", config.metrics), ("hooks", config.hooks)):
        yield from ((f"{group}.{name}", node) for name, node in nodes.items())


def _shape(node: Any) -> Any:
    """Returns the node with no more of its values than its check looks at."""
    if isinstance(node, Mapping):
        return {
            key: value if str(key).startswith("_") and key != "_args_" else _shape(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_shape(each) for each in node]
    # Whole numbers fit wherever one of them does.
    whole = not isinstance(node, float) or node.is_integer()
    return 0 if node is not None and not isinstance(node, str) and whole else node


def _target_problems(key: str, node: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        check_signature(key, node)
    except ConfigError as error:
        return tuple(replace(each, choices=tuple(each.choices)) for each in error.problems)
    return ()


_HERE = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
)
_RAY = "hydra_plugins.runner_launchers.ray.RayLauncher"


def starts_here(launcher: Mapping[str, Any]) -> bool:
    """Whether a launcher's trials surely see the files that this process sees.

    Args:
      launcher: the value of `hydra.launcher`.
    """
    target = str(launcher.get("_target_", ""))
    init = launcher.get("init") or {}
    return target in _HERE or (target == _RAY and init.get("address") is None)


def check_sources(composed: Sequence[ComposedPoint]) -> None:
    """Checks that checkpoints are where trials look for them, as a run does before it starts.

    Looks at paths of this machine only, and not at what is in the checkpoints. What is below a
    folder that one of the trials writes to may come to be there, and a run that has begun before
    does not read its sources again.

    Raises:
      ConfigError: with every problem of every trial.
    """
    written = {folder for each in composed for folder in _written(each.config)}
    begun: dict[str, set[str]] = {}
    known: dict[str, tuple[Problem, ...]] = {}
    problems: dict[Problem, list[Point]] = {}
    for each in composed:
        if _has_begun(each, begun):
            continue
        for name, scaffold in each.config.scaffolds.items():
            asked = repr((name, *_asked(scaffold)))
            if asked not in known:
                known[asked] = _source_problems(name, scaffold, written)
            for problem in known[asked]:
                problems.setdefault(problem, []).append(each.point)
    if problems:
        raise ConfigError(
            *(placed(problem, where, len(composed)) for problem, where in problems.items())
        )


def _written(config: RunConfig) -> Iterator[Path]:
    """Yields the folders that a run, and those it trains as its sources, put checkpoints in."""
    own = Path(config.run_dir).absolute()
    yield own
    for scaffold in config.scaffolds.values():
        if (scaffold.checkpoint or "").startswith(EXPERIMENT):
            yield own.parent / str(scaffold.checkpoint).removeprefix(EXPERIMENT)


def _has_begun(point: ComposedPoint, begun: dict[str, set[str]]) -> bool:
    """Whether a run of the configuration is there, whose sources were found then."""
    config = point.config
    if config.resume is Resume.never:
        return False
    if config.run_dir not in begun:
        found = runs(Path(config.run_dir).absolute())
        begun[config.run_dir] = {record.fingerprint for _, record in found}
    return point.fingerprint in begun[config.run_dir]


def _source_problems(
    name: str, scaffold: ScaffoldConfig, written: set[Path]
) -> tuple[Problem, ...]:
    place = scaffold.checkpoint
    if place is None or any(_is_elsewhere(each, written) for each in _places(scaffold)):
        return ()
    try:
        for path in resolve(place, scaffold.which or LATEST, scaffold.average):
            recognise(path)
    except NoCheckpointError as error:
        return () if scaffold.optional else _of(name, error)
    except CheckpointError as error:
        return _of(name, error)
    return ()


def _asked(scaffold: ScaffoldConfig) -> tuple[object, ...]:
    """Returns all that decides what is looked for."""
    return scaffold.checkpoint, scaffold.which, scaffold.average, scaffold.optional


def _of(name: str, error: CheckpointError) -> tuple[Problem, ...]:
    return tuple(
        in_scaffold(name, replace(each, choices=tuple(each.choices))) for each in error.problems
    )


def _places(scaffold: ScaffoldConfig) -> list[str]:
    """Returns all texts that may name a checkpoint's place."""
    listed = scaffold.average if isinstance(scaffold.average, list) else []
    return [str(scaffold.checkpoint), *(each for each in listed if isinstance(each, str))]


def _is_elsewhere(place: str, written: set[Path]) -> bool:
    """Whether it takes a network, or a trial before, to find what is at a place."""
    if place.startswith((EXPERIMENT, *MLFLOW_SCHEMES)) or files.is_remote(place):
        return True
    path = Path(os.path.abspath(os.path.expanduser(place)))
    return any(path.is_relative_to(folder) for folder in written)
