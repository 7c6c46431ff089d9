"""The trials that a sweep is to run: their overrides, composed and checked before the first starts.

Everything that can be found without building a graph is checked: the configuration of each trial,
its `_target_` entries, and whether its checkpoints exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.core.utils import env_override
from hydra.errors import HydraException
from omegaconf import DictConfig

from runner.checkpoints import files
from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import LATEST, checkpoint_paths
from runner.checkpoints.recognition import recognise
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
from runner.config.fingerprint import Identity
from runner.config.instantiation import check_signature
from runner.config.keys import target_nodes
from runner.config.schema import MODEL_SWITCHES, RunConfig, ScaffoldConfig
from runner.config.spelling import is_plain, spelled
from runner.config.validation import validate
from runner.console import some_of
from runner.errors import CheckpointError, ConfigError, Problem, RunnerError, require_all
from runner.runs.run_directory import runs
from runner.system.imports import import_tensorflow, without_collections

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

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


def _check_trials(
    trials: Sequence[tuple[Point, _Item]], check: Callable[[_Item], _Result]
) -> list[_Result]:
    """Checks every trial, and returns the results of `check`.

    Raises:
      ConfigError: with every problem of every trial, each once with the trials that have it.
        Problems are the same if all but their remedies are, which may quote a value.
    """
    results: list[_Result] = []
    reported: dict[tuple[str, str], tuple[Problem, list[Point]]] = {}
    for point, item in trials:
        try:
            results.append(check(item))
        except RunnerError as error:
            for problem in error.problems:
                entry = reported.setdefault((problem.state, problem.cause), (problem, []))
                entry[1].append(point)
    if reported:
        problems = (_with_trials(*entry, len(trials)) for entry in reported.values())
        raise ConfigError(*problems)
    return results


def _with_trials(problem: Problem, points: Sequence[Point], count: int) -> Problem:
    """Adds to a problem which trials have it, unless all have."""
    if len(points) == count:
        return problem
    trials = some_of([str(point) for point in points], _NAMED, "; ")
    where = f"in {len(points)} of {count} trials: {trials}"
    return replace(problem, cause=f"{problem.cause} ({where})" if problem.cause else where)


def compose_points(points: Sequence[Point], compose: Compose) -> list[ComposedPoint]:
    """Composes and validates every point.

    Raises:
      ConfigError: with every problem of every point.
    """

    def composed(point: Point) -> ComposedPoint:
        with reporting_composition(point.overrides):
            config = compose(point.overrides)
        return _validated(point, config)

    return _check_trials([(point, point) for point in points], composed)


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
    with without_collections() if first else nullcontext():
        _check_trials(
            [(trial.point, _targets(trial.config)) for trial in composed],
            lambda nodes: require_all(*(partial(check_signature, *node) for node in nodes)),
        )


def _targets(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yields the key and the node of whatever has targets."""
    for key, value, target in target_nodes(config, RunConfig):
        node = value
        if key == "model":
            node = {name: node[name] for name in node if name not in MODEL_SWITCHES}
        if node:
            yield key, {**node, "_partial_": True} if target.called else node


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

    def check(trial: ComposedPoint) -> None:
        config = trial.config
        if config.resume is not Resume.never and (config.run_dir, trial.fingerprint) in begun:
            return  # The run has read its sources.
        problems: list[Problem] = []
        for name, scaffold in config.scaffolds.items():
            with CheckpointError.within(f"scaffolds.{name}.checkpoint", problems):
                _check_source(scaffold, written)
        if problems:
            raise ConfigError(*problems)

    _check_trials([(trial.point, trial) for trial in composed], check)


def _written(config: RunConfig) -> Iterator[Path]:
    """Yields the folders in which a run, and the runs of its sources, save checkpoints."""
    folder = Path(config.run_dir).absolute()
    yield folder
    for scaffold in config.scaffolds.values():
        if (scaffold.checkpoint or "").startswith(EXPERIMENT):
            yield folder.parent / str(scaffold.checkpoint).removeprefix(EXPERIMENT)


def _check_source(scaffold: ScaffoldConfig, written: set[Path]) -> None:
    averaged = scaffold.average if isinstance(scaffold.average, list) else []
    sources = [source for source in (scaffold.checkpoint, *averaged) if isinstance(source, str)]
    if scaffold.checkpoint is None or any(_is_elsewhere(source, written) for source in sources):
        return
    try:
        for path in checkpoint_paths(
            scaffold.checkpoint, scaffold.which or LATEST, scaffold.average
        ):
            recognise(path)
    except NoCheckpointError as error:
        if not scaffold.optional:
            raise error.or_else(OPTIONAL) from error


def _is_elsewhere(source: str, written: set[Path]) -> bool:
    """Whether only a network or an earlier trial can provide a source."""
    if source.startswith((EXPERIMENT, *MLFLOW_SCHEMES)) or files.is_remote(source):
        return True
    path = Path(os.path.abspath(os.path.expanduser(source)))
    return any(path.is_relative_to(folder) for folder in written)


def parsed(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Returns overrides as the grammar reads them.

    A quoted string is a string also as an argument of `choice()`, `sort()` and `shuffle()`, which
    Hydra passes without its quotes and would read again: `choice('1.10',x)` as 1.1 and x. So is
    what `str()` returns.
    """
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    for override in parsed:
        if isinstance(choices := override.value(), ChoiceSweep):
            choices.list = _in_quotes(choices.list)
    return parsed


def _in_quotes(value: Any) -> Any:
    """Returns a value whose strings have quotes where the grammar needs them."""
    if isinstance(value, list):
        return [_in_quotes(item) for item in value]
    if isinstance(value, dict):
        return {key: _in_quotes(item) for key, item in value.items()}
    is_bare = isinstance(value, str) and not is_plain(value)
    return QuotedString(value, Quote.single) if is_bare else value


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
        raise ConfigError.of(
            f"hydra.sweeper.{name} is {value!r}",
            "it must be a mapping",
            f"for example 'hydra.sweeper.{name}={example}'",
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
