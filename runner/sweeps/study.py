"""A study of Optuna's: opened from its configuration, reported to, and read at the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.study import StudyDirection
from optuna.trial import TrialState

from runner.config import Goal
from runner.errors import ConfigError, Problem
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.summary import Objective
from runner.sweeps.trial import Report
from runner.targets import build_target

logger = logging.getLogger(__name__)

DATABASE = "study.db"
SWEEPER = "runner.sweeper"
"""User attribute of a trial: the process that sweeps it."""

OBJECTIVES = "runner.objectives"
"""User attribute of a study: the names of its objectives."""

# Its own log says on screen what the summary says better.
optuna.logging.set_verbosity(optuna.logging.WARNING)

_STATES = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.PRUNED: TrialState.PRUNED,
}


def open_storage(directory: Path, storage: Any) -> Any:
    """Returns the storage that `hydra.sweeper.storage` names.

    Args:
      directory: the sweep's.
      storage: a database's URL, a node with a `_target_`, or None for SQLite in the directory.

    Raises:
      ConfigError: it cannot be opened.
    """
    if isinstance(storage, Mapping):
        return build_target("hydra.sweeper.storage", storage)
    if storage is None:
        # Two processes that make the tables at once disturb each other.
        with FileLock(directory / "study.lock"):
            return _database(f"sqlite:///{directory / DATABASE}")
    try:
        return _database(storage)
    except Exception as first:  # noqa: BLE001 - the second attempt tells
        logger.info("opening the study's database again: %s", first)
    try:
        return _database(storage)  # By now, another process may have made the tables.
    except Exception as error:
        raise ConfigError(
            Problem(
                "hydra.sweeper.storage cannot be opened",
                str(error).splitlines()[0],
                "a URL such as sqlite:///study.db or postgresql://host/database, whose driver is"
                " installed",
            )
        ) from error


def _database(url: str) -> optuna.storages.RDBStorage:
    # Several processes write to the file, each for a moment.
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    return optuna.storages.RDBStorage(url, engine_kwargs=arguments)


def open_study(
    storage: Any, name: str, sweeper: Mapping[str, Any], objectives: Sequence[Objective]
) -> optuna.Study:
    """Opens the study, or goes on with one of this name.

    Raises:
      ConfigError: the sampler or pruner cannot be built, or the study has other objectives.
    """
    directions = [each.goal.value for each in objectives]
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=build_target("hydra.sweeper.sampler", sweeper["sampler"]),
        pruner=build_target("hydra.sweeper.pruner", sweeper["pruner"]),
        directions=[StudyDirection[each.upper()] for each in directions],
        load_if_exists=True,
    )
    found = [each.name.lower() for each in study.directions]
    wanted = [each.name for each in objectives]
    names = study.user_attrs.get(OBJECTIVES)
    if found != directions or names not in (None, wanted):
        raise ConfigError(
            Problem(
                f"the study {name!r} exists, with the objectives {names or ''} {found}",
                f"this sweep has {wanted} {directions}",
                "give hydra.sweeper.study_name another name, or repeat its objectives",
            )
        )
    if names is None:
        study.set_user_attr(OBJECTIVES, wanted)
    return study


def trial_of(study: optuna.Study, storage: Any, number: int) -> optuna.Trial:
    """Returns a trial of the study, by which it is reported and told of."""
    found = storage.get_study_id_from_name(study.study_name)
    return optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(found, number))


def reporter(directory: Path, storage: Any, told: Mapping[str, Any]) -> Report:
    """Returns what reports evaluations of one trial and asks the pruner.

    Args:
      directory: the sweep's.
      storage: as the sweeper's configuration has it.
      told: the attempt's `study`: its `name`, the `trial`, its `pruner`, and the `metric`.
    """
    opened = open_storage(directory, storage)
    study = optuna.load_study(
        study_name=told["name"],
        storage=opened,
        pruner=build_target("hydra.sweeper.pruner", told["pruner"]),
    )
    trial = trial_of(study, opened, told["trial"])
    # A resumed trial evaluates some steps again.
    known = {each.number: each for each in study.trials}[trial.number].intermediate_values

    def report(metrics: Mapping[str, float], step: int) -> bool:
        if step not in known:
            trial.report(metrics[told["metric"]], step)
        return trial.should_prune()

    return report


def tell(
    study: optuna.Study,
    number: int,
    attempt: Attempt,
    objectives: Sequence[Objective],
) -> None:
    """Tells the study what became of a trial; one without a value has failed."""
    state = _STATES.get(attempt.status, TrialState.FAIL)
    values = [each.of(attempt) for each in objectives]
    usable = [value for value in values if value is not None and not math.isnan(value)]
    if state is TrialState.COMPLETE and len(usable) == len(objectives):
        study.tell(number, usable, skip_if_finished=True)
    else:
        failed = TrialState.FAIL if state is TrialState.COMPLETE else state
        study.tell(number, state=failed, skip_if_finished=True)


def check(directory: Path, sweeper: Mapping[str, Any]) -> None:
    """Builds all that a search needs, to find mistakes before anything is made.

    Args:
      directory: not used for a storage that is given.
      sweeper: the sweeper's configuration.

    Raises:
      ConfigError: with every mistake.
    """
    problems: list[Problem] = []
    for build in (
        lambda: build_target("hydra.sweeper.sampler", sweeper["sampler"]),
        lambda: build_target("hydra.sweeper.pruner", sweeper["pruner"]),
        lambda: custom_space(sweeper),
        lambda: constraints(sweeper),
    ):
        try:
            build()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    if sweeper.get("storage") is not None:
        open_storage(directory, sweeper["storage"])


def custom_space(sweeper: Mapping[str, Any]) -> Callable[[optuna.Trial], Any] | None:
    """Returns the function that `hydra.sweeper.custom_search_space` names, if it names one.

    Raises:
      ConfigError: there is no such function, or its arguments do not fit.
    """
    node = sweeper.get("custom_search_space")
    if node is None:
        return None
    found: Callable[[optuna.Trial], Any] = build_target(
        "hydra.sweeper.custom_search_space", {**node, "_partial_": True}
    )
    return found


Constraint = Callable[[Mapping[str, float]], float]


def constraints(sweeper: Mapping[str, Any]) -> dict[str, Constraint]:
    """Returns name -> function of a trial's metrics; at most 0 is feasible.

    Raises:
      ConfigError: an entry has neither bounds nor a `_target_`.
    """
    found: dict[str, Constraint] = {}
    problems = []
    for name, node in (sweeper.get("constraints") or {}).items():
        key = f"hydra.sweeper.constraints.{name}"
        if isinstance(node, Mapping) and "_target_" in node:
            found[name] = build_target(key, {**node, "_partial_": True})
        elif isinstance(node, Mapping) and node and set(node) <= {"min", "max"}:
            found[name] = _bounds(name.removeprefix("validation/"), node)
        else:
            problems.append(
                Problem(
                    f"{key} is {node!r}",
                    "it must give bounds of a metric, or a `_target_`",
                    f"for example {{{name}: {{max: 0.5}}}}",
                )
            )
    if problems:
        raise ConfigError(*problems)
    return found


def _bounds(metric: str, node: Mapping[str, float]) -> Constraint:
    def violation(metrics: Mapping[str, float]) -> float:
        value = metrics.get(metric, math.nan)
        beyond = [value - node["max"]] if "max" in node else []
        beyond += [node["min"] - value] if "min" in node else []
        return max(beyond)

    return violation


def objectives_of(sweeper: Mapping[str, Any], default: Objective) -> list[Objective]:
    """Returns `hydra.sweeper.objectives`, or the experiment's own.

    Raises:
      ConfigError: a goal is no goal, or a pruner is to compare several objectives.
    """
    given: Mapping[str, Any] = sweeper.get("objectives") or {}
    problems = [
        Problem(
            f"hydra.sweeper.objectives.{name} is {goal!r}",
            "it must be a goal",
            choices=tuple(Goal.__members__),
        )
        for name, goal in given.items()
        if goal not in Goal.__members__
    ]
    pruner = str(sweeper["pruner"].get("_target_", ""))
    if len(given) > 1 and not pruner.endswith(".NopPruner"):
        problems.append(
            Problem(
                f"hydra.sweeper.pruner is {pruner}",
                f"there are {len(given)} objectives, and trials are pruned by one",
                "hydra/sweeper/pruner=none",
            )
        )
    if problems:
        raise ConfigError(*problems)
    return [Objective(name, Goal[goal]) for name, goal in given.items()] or [default]
