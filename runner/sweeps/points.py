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
        self._found: dict[tuple[str, str], tuple[Problem, list[Point]]] = {}

    def add(self, problems: Sequence[Problem], point: Point) -> None:
        for problem in problems:
            self._found.setdefault((problem.state, problem.cause), (problem, []))[1].append(point)

    def require_none(self, count: int) -> None:
        """Raises ConfigError with the problems, if there are any, of `count` points."""
        if self._found:
            found = self._found.values()
            raise ConfigError(*(_placed(problem, where, count) for problem, where in found))


def _placed(problem: Problem, where: Sequence[Point], count: int) -> Problem:
    """Adds to a problem which trials have it, unless all have."""
    if len(where) == count:
        return problem
    shown = "; ".join(str(point) for point in where[:_NAMED])
    more = f"; and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    place = f"in {len(where)} of {count} trials: {shown}{more}"
    return replace(problem, cause=f"{problem.cause} ({place})" if problem.cause else place)


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
    """Checks that the targets of all trials exist and take the arguments they are given.

    Imports them, and with them TensorFlow. Calls none of them.

    Raises:
      ConfigError: with every problem of every trial.
    """
    first = "tensorflow" not in sys.modules
    import_tensorflow()
    problems = _Problems()
    with without_collections() if first else nullcontext():
        for each in composed:
            for key, node in _targets(each.config):
                try:
                    check_signature(key, node)
                except ConfigError as error:
                    problems.add(error.problems, each.point)
    problems.require_none(len(composed))


def _targets(config: RunConfig) -> Iterator[tuple[str, Any]]:
    # These get more arguments where they are called.
    called = {"graph": config.graph, "model_fn": config.model_fn}
    called |= {f"input_fns.{name}": node for name, node in config.input_fns.items()}
    yield from ((key, {**node, "_partial_": True}) for key, node in called.items() if node)
    yield "data", config.data
    yield "model", {key: value for key, value in config.model.items() if key not in MODEL_SWITCHES}
    yield "loss", config.loss
    yield "optimizer", config.optimizer
    for group in ("metrics", "weighted_metrics", "hooks"):
        yield from ((f"{group}.{name}", node) for name, node in getattr(config, group).items())


def check_sources(composed: Sequence[ComposedPoint]) -> None:
    """Checks that checkpoints are where trials look for them, as a run does before it starts.

    Looks only at paths of this machine, and not into the checkpoints. Not looked for is what is
    below a folder that one of the trials writes to, which may come to exist, and what a run has
    read that is to be resumed.

    Raises:
      ConfigError: with every problem of every trial.
    """
    written = {folder for each in composed for folder in _written(each.config)}
    begun = {
        (run_dir, record.fingerprint)
        for run_dir in {each.config.run_dir for each in composed}
        for _, record in runs(Path(run_dir).absolute())
    }
    known: dict[str, Sequence[Problem]] = {}
    problems = _Problems()
    for each in composed:
        config = each.config
        if config.resume is not Resume.never and (config.run_dir, each.fingerprint) in begun:
            continue  # A run that has found its sources.
        for name, scaffold in config.scaffolds.items():
            place = (scaffold.checkpoint, scaffold.which, scaffold.average, scaffold.optional)
            asked = repr((name, place))
            if asked not in known:
                known[asked] = _source_problems(name, scaffold, written)
            problems.add(known[asked], each.point)
    problems.require_none(len(composed))


def _written(config: RunConfig) -> Iterator[Path]:
    """Yields the folders in which a run, and those that train its sources, save checkpoints."""
    own = Path(config.run_dir).absolute()
    yield own
    for scaffold in config.scaffolds.values():
        if (scaffold.checkpoint or "").startswith(EXPERIMENT):
            yield own.parent / str(scaffold.checkpoint).removeprefix(EXPERIMENT)


def _source_problems(name: str, scaffold: ScaffoldConfig, written: set[Path]) -> Sequence[Problem]:
    place = scaffold.checkpoint
    averaged = scaffold.average if isinstance(scaffold.average, list) else []
    places = [str(place), *(each for each in averaged if isinstance(each, str))]
    if place is None or any(_is_elsewhere(each, written) for each in places):
        return ()
    try:
        for path in resolve(place, scaffold.which or LATEST, scaffold.average):
            recognise(path)
    except NoCheckpointError as error:
        found = () if scaffold.optional else error.or_else(OPTIONAL).problems
    except CheckpointError as error:
        found = error.problems
    else:
        return ()
    return [in_scaffold(name, each) for each in found]


def _is_elsewhere(place: str, written: set[Path]) -> bool:
    """Whether only a network, or an earlier trial, can provide what is at a place."""
    if place.startswith((EXPERIMENT, *MLFLOW_SCHEMES)) or files.is_remote(place):
        return True
    path = Path(os.path.abspath(os.path.expanduser(place)))
    return any(path.is_relative_to(folder) for folder in written)


def name_of(override: Override) -> str:
    """Returns the key of an override, such as `train.steps` or `scaffold@scaffolds.cnn`."""
    return override.get_key_element().lstrip("+~")


def given_mapping(name: str, value: Any, example: str) -> dict[str, Any]:
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
    return {str(key): each for key, each in value.items()}


def params_as_typed(params: Any, overrides: Sequence[Override]) -> list[str]:
    """Returns `hydra.sweeper.params` as overrides, without keys that the command line gives.

    Args:
      params: key -> values, as a string in the grammar of the command line or as a list; or None.
        Each element of a list is one value, even a list or a string with commas.
      overrides: the command line's.

    Raises:
      ConfigError: they are not a mapping, or a list is empty.
    """
    given = {name_of(override) for override in overrides}
    left = {
        key: value
        for key, value in given_mapping("params", params, "{seed: [1,2]}").items()
        if key.lstrip("+~") not in given
    }
    problems = [
        Problem(
            f"hydra.sweeper.params has {key}: []",
            "a list holds values, and a trial needs one",
            f"give it values, such as {key}: [1,2], or delete it",
        )
        for key, value in left.items()
        if isinstance(value, list) and not value
    ]
    if problems:
        raise ConfigError(*problems)
    return [with_plus_plus(f"{key}={_as_typed(value)}") for key, value in left.items()]


def _as_typed(values: Any) -> str:
    if isinstance(values, list):
        return ",".join(spelled(value, _one_string) for value in values)
    return values if isinstance(values, str) else spelled(values, _one_string)


def _one_string(text: str) -> str:
    """Returns a string of a list: as typed where the grammar reads one value, otherwise quoted."""
    try:
        values = OverridesParser.create().parse_override(f"key={text}").value()
        quoted = not text or (isinstance(values, ChoiceSweep) and values.simple_form)
    except HydraException:
        quoted = True
    return QuotedString(text, Quote.single).with_quotes() if quoted else text
