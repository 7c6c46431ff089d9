"""A search's study in Optuna: opened from the configuration, and updated with attempts.

Optuna's own retries and heartbeats work inside `Study.optimize`, which calls the objective in its
own process. Trials here run wherever a launcher puts them, so `ask` and `tell` are used. All that
leans on Optuna's internals is in this module: `Study.stop`, which samplers call outside
`optimize`; ids of trials from the storage; an `optuna.Trial` built from an id.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.exceptions import OptunaError
from optuna.samplers import BaseSampler, GridSampler, QMCSampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from runner.config.instantiation import build_target, locate_target
from runner.config.training_schema import metric_of
from runner.errors import ConfigError, SweepError
from runner.sweeps.objectives import Objective, fail_if_nan
from runner.sweeps.search_space import SearchSpace, as_shown
from runner.sweeps.sweep_directory import Attempt
from runner.system.locks import locked
from runner.system.status import Status

logger = logging.getLogger(__name__)

OWNER = "runner.sweeper"
"""User attribute of a trial: the name of the process that sweeps it."""

_EXHAUSTED = "runner.exhausted"
"""User attribute of a study: the configuration of a sampler that has nothing more to try."""

_OBJECTIVES = "runner.objectives"
"""User attribute of a study: the names of its objectives."""

_STATES = {
    Status.FINISHED: TrialState.COMPLETE,
    Status.PRUNED: TrialState.PRUNED,
    Status.FAILED: TrialState.FAIL,
}
_STATUSES = {state: status for status, state in _STATES.items()}
DECIDED = tuple(_STATES)
"""Statuses of attempts that end their trial."""

_DATABASE = "study.db"
_SAMPLER = "hydra.sweeper.sampler"
PRUNER = "hydra.sweeper.pruner"
_DRAWING_ERRORS = (ValueError, TypeError, RuntimeError, ImportError)
"""The errors of samplers that do not fit a search space, or lack a package."""

# What a storage raises while its database is unreachable.
_UNREACHABLE = (OptunaError, SQLAlchemyError, OSError, ConfigError)

# Optuna's log would repeat what the results say.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(directory: Path, storage: Any) -> Any:
    """Returns the storage that `hydra.sweeper.storage` names.

    Args:
      directory: the sweep's.
      storage: a database's URL, a node with a `_target_`, or None for SQLite in the directory.

    Raises:
      ConfigError: it cannot be opened.
    """
    if storage is None:
        # Two processes that create the tables at once disturb each other.
        with locked(directory / "study.lock", "the study"):
            # Only its owner may read it: it holds the values drawn, secrets included.
            (directory / _DATABASE).touch(mode=0o600)
            return _database(_sqlite(directory / _DATABASE))
    if isinstance(storage, Mapping):
        return build_target("hydra.sweeper.storage", storage)
    return _of_url(storage)


def _sqlite(path: Path) -> str:
    """Returns the URL of a file, whatever its path holds.

    Versions of SQLAlchemy quote paths in other ways, and Optuna formats the URL; a URI within it is
    read by SQLite alone.
    """
    uri = f"file:{quote(str(path.absolute()))}"
    url = URL.create("sqlite", database=uri, query={"uri": "true"})
    return url.render_as_string(hide_password=False)


def _of_url(url: str) -> RDBStorage:
    with suppress(Exception):
        return _database(url)
    try:
        return _database(url)  # By now, another process may have created the tables.
    except Exception as error:
        raise ConfigError.of(
            "hydra.sweeper.storage cannot be opened",
            str(error).splitlines()[0],
            "a URL such as sqlite:///study.db or postgresql://host/database, whose driver is"
            " installed",
        ) from error


def _database(url: str) -> RDBStorage:
    # Several processes write to the file, each for a moment.
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    return RDBStorage(url, engine_kwargs=arguments)


def build_sampler(settings: Mapping[str, Any], drawn: int = 0) -> BaseSampler:
    """Returns the sampler that `hydra.sweeper.sampler` names.

    Args:
      settings: the sweeper's.
      drawn: number of trials already in the study. With the same seed a resumed study would draw
        its first trials again; grids and QMC sequences keep their place by themselves.

    Raises:
      ConfigError: there is no such sampler, or its arguments do not fit.
    """
    node = dict(settings["sampler"])
    target = locate_target(_SAMPLER, node)
    ordered = isinstance(target, type) and issubclass(target, GridSampler | QMCSampler)
    if drawn and not ordered and isinstance(node.get("seed"), int):
        node["seed"] += drawn
    sampler: BaseSampler = build_target(_SAMPLER, node)
    return sampler


class SearchStudy(optuna.Study):
    """An existing study, as one process of a search sees it."""

    def __init__(
        self,
        name: str,
        storage: Any,
        settings: Mapping[str, Any],
        objectives: Sequence[Objective],
    ) -> None:
        sampler, pruner = build_sampler(settings), build_target(PRUNER, settings["pruner"])
        super().__init__(study_name=name, storage=storage, sampler=sampler, pruner=pruner)
        self.objectives = objectives
        self._settings, self._database = settings, storage
        self._sampler_setting = json.dumps(settings["sampler"], sort_keys=True, default=str)

    def stop(self) -> None:
        """Records that the sampler, with its arguments, has nothing more to try.

        Samplers call this; Optuna itself supports it only inside `optimize`.
        """
        self.set_user_attr(_EXHAUSTED, self._sampler_setting)

    def exhausted(self) -> bool:
        """Whether this sampler, with these arguments, has nothing more to try."""
        return bool(self.user_attrs.get(_EXHAUSTED) == self._sampler_setting)

    def reseed(self) -> None:
        """Rebuilds the sampler with a seed that has drawn none of the present trials."""
        self.sampler = build_sampler(self._settings, len(self.get_trials(deepcopy=False)))

    def check_objectives(self) -> None:
        """Checks that the study, which may have trials, has the same objectives.

        Raises:
          ConfigError: it has others.
        """
        stored_goals = [direction.name.lower() for direction in self.directions]
        stored_names = self.user_attrs.get(_OBJECTIVES)
        names = [objective.name for objective in self.objectives]
        goals = [objective.goal.value for objective in self.objectives]
        if stored_goals != goals or stored_names not in (None, names):
            raise ConfigError.of(
                f"the study {self.study_name!r} exists, with the objectives"
                f" {stored_names or ''} {stored_goals}",
                f"this sweep has {names} {goals}",
                "give hydra.sweeper.study_name another name, or repeat its objectives",
            )

    def finished(self) -> list[FrozenTrial]:
        """Returns the trials that have finished or were pruned."""
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        return self.get_trials(deepcopy=False, states=states)

    def draw(self, space: SearchSpace, owner: str) -> optuna.Trial:
        """Asks the sampler for a trial from `space`, for the process named `owner`.

        Raises:
          SweepError: the sampler draws none, or the study has values that Optuna does not mix
            with what it draws: other choices, or another kind of number.
        """
        try:
            trial = self.ask(space.distributions())
        except _DRAWING_ERRORS as error:
            target = self._settings["sampler"]["_target_"]
            raise SweepError.of(
                f"hydra.sweeper.sampler is {target}, which draws no trial",
                f"{type(error).__name__}: {error}",
                "correct hydra.sweeper.sampler or the space; where a study was searched with"
                " another space, give hydra.sweeper.study_name another name, or resume=never",
            ) from error
        trial.set_user_attr(OWNER, owner)
        return trial

    def claim(self, number: int, owner: str) -> None:
        """Makes another process the owner of an unfinished trial."""
        self._trial(number).set_user_attr(OWNER, owner)

    def record(self, attempt: Attempt) -> Attempt:
        """Updates the study with a trial's last attempt, and returns it as `fail_if_nan` does.

        A trial that was killed or skipped remains RUNNING in the study, and can be resumed.
        """
        attempt = fail_if_nan(attempt, self.objectives)
        if attempt.status not in DECIDED:
            return attempt
        trial = self._trial(attempt.trial)
        for name, value in attempt.metrics.items():
            trial.set_user_attr(name, value)
        values = [objective.of(attempt) for objective in self.objectives]
        finished = attempt.status is Status.FINISHED
        self.tell(
            attempt.trial,
            [value for value in values if value is not None] if finished else None,
            state=_STATES[attempt.status],
            skip_if_finished=True,
        )
        return attempt

    def ended(self) -> list[Attempt]:
        """Returns the trials that have ended, with what the study stores of them."""
        stored = self.get_trials(deepcopy=False, states=tuple(_STATUSES))
        return [attempt_of(trial, self.objectives) for trial in stored]

    def _trial(self, number: int) -> optuna.Trial:
        return optuna.Trial(self, _trial_id(self._database, self.study_name, number))


def open_study(
    storage: Any,
    name: str,
    settings: Mapping[str, Any],
    objectives: Sequence[Objective],
) -> SearchStudy:
    """Opens the study of this name, and creates it if necessary.

    Raises:
      ConfigError: the sampler or pruner cannot be built, or the study has other objectives.
    """
    goals = [StudyDirection[objective.goal.value.upper()] for objective in objectives]
    optuna.create_study(storage=storage, study_name=name, directions=goals, load_if_exists=True)
    study = SearchStudy(name, storage, settings, objectives)
    study.check_objectives()
    if _OBJECTIVES not in study.user_attrs:
        study.set_user_attr(_OBJECTIVES, [objective.name for objective in objectives])
    return study


def _trial_id(storage: Any, study: str, number: int) -> int:
    """Returns the storage's id of a trial."""
    study_id = storage.get_study_id_from_name(study)
    trial_id: int = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    return trial_id


def attempt_of(trial: FrozenTrial, objectives: Sequence[Objective]) -> Attempt:
    """Builds the attempt at a trial that has ended in another folder from what the study stores."""
    names = [metric_of(objective.name) for objective in objectives]
    metrics = dict(zip(names, trial.values or (), strict=False))
    status = _STATUSES[trial.state]
    return Attempt(
        trial.number,
        values={key: as_shown(value) for key, value in trial.params.items()},
        metric=objectives[0].name,
        status=status,
        objective=metrics.get(names[0]),
        metrics=metrics,
        curve=tuple(sorted(trial.intermediate_values.items())),
        message="it has no files in this folder" if status is Status.FAILED else "",
    )


class Reporter:
    """Takes the metrics of each evaluation of one trial; returns whether the trial is pruned.

    While the study is unreachable, the trial continues and is not pruned.

    Args:
      directory: the sweep's.
      settings: the sweeper's.
      attempt: at the trial, with the name of its study.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any], attempt: Attempt) -> None:
        self._directory, self._settings, self._attempt = directory, settings, attempt
        self._metric = metric_of(attempt.metric)
        self._trial: optuna.Trial | None = None

    def __call__(self, metrics: Mapping[str, float], step: int) -> bool:
        """Reports an evaluation."""
        try:
            trial = self._opened()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # A resumed trial reports some steps again.
                trial.report(metrics[self._metric], step)
            return trial.should_prune()
        except _UNREACHABLE as error:
            message = "Trial %d continues, though step %d cannot be reported to its study: %s"
            logger.warning(message, self._attempt.trial, step, error)
            return False

    def _opened(self) -> optuna.Trial:
        if self._trial is None:
            storage = open_storage(self._directory, self._settings.get("storage"))
            name, pruner = str(self._attempt.study), build_target(PRUNER, self._settings["pruner"])
            study = optuna.load_study(study_name=name, storage=storage, pruner=pruner)
            self._trial = optuna.Trial(study, _trial_id(storage, name, self._attempt.trial))
        return self._trial
