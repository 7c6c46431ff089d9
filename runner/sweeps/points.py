"""The trials that a sweep is to run: their overrides, composed and checked before the first starts.

Everything that can be found without building a graph is checked: the configuration of each trial,
its `_target_` entries, and whether its checkpoints exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.core.utils import env_override
from hydra.errors import HydraException
from omegaconf import DictConfig

from runner.checkpoints import files
from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.formats import recognise
from runner.checkpoints.locate import LATEST, resolve
from runner.config.choices import EXPERIMENT, MLFLOW_SCHEMES, OPTIONAL, Resume
from runner.config.cluster import resolve_trial
from runner.config.composition import (
    Compose,
    experiment_names,
    reporting_composition,
    running,
    with_plus_plus,
    without_hydra,
)
from runner.config.fingerprint import Identity, in_scaffold
from runner.config.instantiation import check_signature
from runner.config.schema import MODEL_SWITCHES, RunConfig, ScaffoldConfig
from runner.config.spelling import spelled
from runner.config.validation import validate
from runner.errors import CheckpointError, ConfigError, Problem, RunnerError
from runner.runs.run_directory import runs
from runner.system.imports import import_tensorflow, without_collections

# How many of the trials that have a problem are named.
_NAMED = 3


@dataclass(frozen=True)
class Point:
    """The values of one trial.

    Attributes:
      overrides: all of the trial's, as Hydra composes them.
      values: swept key -> value, without the quotes and escapes of its override.
    """

    overrides: tuple[str, ...]
    values: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items()) or "the only one"


@dataclass(frozen=True)
class ComposedPoint:
    """A point with a valid configuration and its fingerprint."""

    point: Point
    config: RunConfig
    fingerprint: str


class _Problems:
    """The problems of many points, each reported once with the points that have it.

    Problems of several points are the same if all but their remedies are, which may quote a value.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], tuple[Problem, list[Point]]] = {}

    def add(self, problems: Sequence[Problem], point: Point) -> None:
        for problem in problems:
            entry = self._reported.setdefault((problem.state, problem.cause), (problem, []))
            entry[1].append(point)

    def require_none(self, count: int) -> None:
        """Raises ConfigError with the problems, if there are any, of `count` points."""
        reported = self._reported.values()
        if reported:
            raise ConfigError(
                *(_with_trials(problem, points, count) for problem, points in reported)
            )


def _with_trials(problem: Problem, points: Sequence[Point], count: int) -> Problem:
    """Adds to a problem which trials have it, unless all have."""
    if len(points) == count:
        return problem
    trials = "; ".join(str(point) for point in points[:_NAMED])
    more = f"; and {len(points) - _NAMED} more" if len(points) > _NAMED else ""
    where = f"in {len(points)} of {count} trials: {trials}{more}"
    return replace(problem, cause=f"{problem.cause} ({where})" if problem.cause else where)


def compose_points(points: Sequence[Point], compose: Compose) -> list[ComposedPoint]:
    """Composes and validates every point.

    Raises:
      ConfigError: with every problem of every point.
    """
    composed: list[ComposedPoint] = []
    problems = _Problems()
    for point in points:
        try:
            with reporting_composition():
                config = compose(point.overrides)
            composed.append(_validated(point, config))
        except RunnerError as error:
            problems.add(error.problems, point)
    problems.require_none(len(points))
    return composed


def _validated(point: Point, config: DictConfig) -> ComposedPoint:
    # As Hydra sets it up when it runs the trial.
    with running(config), env_override(config.hydra.job.env_set):
        valid = validate(without_hydra(config), experiment_names())
        resolve_trial(valid, os.environ)
        return ComposedPoint(point, valid, Identity(valid).fingerprint())


def check_targets(composed: Sequence[ComposedPoint]) -> None:
    """Checks that the targets of all trials exist and accept their arguments.

    Imports them, and with them TensorFlow. Calls none of them.

    Raises:
      ConfigError: with every problem of every trial.
    """
    first = "tensorflow" not in sys.modules
    import_tensorflow()
    problems = _Problems()
    with without_collections() if first else nullcontext():
        for trial in composed:
            for key, node in _targets(trial.config):
                try:
                    check_signature(key, node)
                except ConfigError as error:
                    problems.add(error.problems, trial.point)
    problems.require_none(len(composed))


def _targets(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yields the key and the node of whatever has targets."""
    model = {name: value for name, value in config.model.items() if name not in MODEL_SWITCHES}
    yield "model", model
    for key in ("data", "loss", "optimizer", "metrics", "weighted_metrics", "hooks"):
        yield key, getattr(config, key)
    called = {"graph": config.graph, "model_fn": config.model_fn}
    called |= {f"input_fns.{name}": node for name, node in config.input_fns.items()}
    # The call passes further arguments.
    yield from ((key, {**node, "_partial_": True}) for key, node in called.items() if node)


def check_sources(composed: Sequence[ComposedPoint]) -> None:
    """Checks that checkpoints are where trials look for them, as a run does before it starts.

    Checks only paths of this machine. Skips paths in folders that a trial writes to, which may not
    exist yet, and sources of runs that are to be resumed.

    Raises:
      ConfigError: with every problem of every trial.
    """
    written = {folder for trial in composed for folder in _written(trial.config)}
    begun = {
        (run_dir, record.fingerprint)
        for run_dir in {trial.config.run_dir for trial in composed}
        for _, record in runs(Path(run_dir).absolute())
    }
    problems = _Problems()
    for trial in composed:
        config = trial.config
        if config.resume is not Resume.never and (config.run_dir, trial.fingerprint) in begun:
            continue  # The run has read its sources.
        for name, scaffold in config.scaffolds.items():
            problems.add(_source_problems(name, scaffold, written), trial.point)
    problems.require_none(len(composed))


def _written(config: RunConfig) -> Iterator[Path]:
    """Yields the folders in which a run, and the runs of its sources, save checkpoints."""
    folder = Path(config.run_dir).absolute()
    yield folder
    for scaffold in config.scaffolds.values():
        if (scaffold.checkpoint or "").startswith(EXPERIMENT):
            yield folder.parent / str(scaffold.checkpoint).removeprefix(EXPERIMENT)


def _source_problems(name: str, scaffold: ScaffoldConfig, written: set[Path]) -> Sequence[Problem]:
    averaged = scaffold.average if isinstance(scaffold.average, list) else []
    sources = [source for source in (scaffold.checkpoint, *averaged) if isinstance(source, str)]
    if scaffold.checkpoint is None or any(_is_elsewhere(source, written) for source in sources):
        return ()
    try:
        for path in resolve(scaffold.checkpoint, scaffold.which or LATEST, scaffold.average):
            recognise(path)
    except NoCheckpointError as error:
        problems = () if scaffold.optional else error.or_else(OPTIONAL).problems
    except CheckpointError as error:
        problems = error.problems
    else:
        return ()
    return [in_scaffold(name, problem) for problem in problems]


def _is_elsewhere(source: str, written: set[Path]) -> bool:
    """Whether only a network or an earlier trial can provide a source."""
    if source.startswith((EXPERIMENT, *MLFLOW_SCHEMES)) or files.is_remote(source):
        return True
    path = Path(os.path.abspath(os.path.expanduser(source)))
    return any(path.is_relative_to(folder) for folder in written)


def name_of(override: Override) -> str:
    """Returns the key of an override, such as `train.steps` or `scaffold@scaffolds.cnn`."""
    return override.get_key_element().lstrip("+~")


def mapping_setting(name: str, value: Any, example: str) -> dict[str, Any]:
    """Returns `hydra.sweeper.NAME`, its keys as strings; an empty mapping where it is null.

    Raises:
      ConfigError: it is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            Problem(
                f"hydra.sweeper.{name} is {value!r}",
                "it must be a mapping",
                f"for example 'hydra.sweeper.{name}={example}'",
            )
        )
    return {str(key): setting for key, setting in value.items()}


def params_as_typed(params: Any, overrides: Sequence[Override]) -> list[str]:
    """Returns `hydra.sweeper.params` as overrides, without keys that the command line sets.

    Args:
      params: key -> values, as a string in the grammar of the command line or as a list; or None.
        Each element of a list is one value, even a list or a string with commas.
      overrides: the command line's.

    Raises:
      ConfigError: they are not a mapping, or a list is empty.
    """
    names = {name_of(override) for override in overrides}
    settings = {
        key: value
        for key, value in mapping_setting("params", params, "{seed: [1,2]}").items()
        if key.lstrip("+~") not in names
    }
    problems = [
        Problem(
            f"hydra.sweeper.params has {key}: []",
            "a list holds values, and a trial needs one",
            f"give it values, such as {key}: [1,2], or delete it",
        )
        for key, value in settings.items()
        if isinstance(value, list) and not value
    ]
    if problems:
        raise ConfigError(*problems)
    return [with_plus_plus(f"{key}={_as_typed(value)}") for key, value in settings.items()]


def _as_typed(values: Any) -> str:
    if isinstance(values, list):
        return ",".join(spelled(value, _one_string) for value in values)
    return values if isinstance(values, str) else spelled(values, _one_string)


def _one_string(string: str) -> str:
    """Returns a string of a list: as typed where the grammar reads one value, otherwise quoted."""
    try:
        values = OverridesParser.create().parse_override(f"key={string}").value()
        quoted = not string or (isinstance(values, ChoiceSweep) and values.simple_form)
    except HydraException:
        quoted = True
    return QuotedString(string, Quote.single).with_quotes() if quoted else string
