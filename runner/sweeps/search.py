"""A sweep that searches: Optuna's samplers choose the trials, its pruners end the hopeless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.trial import TrialState

from runner.errors import ConfigError
from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus, this_process
from runner.sweeps.execution import Execution, Planned
from runner.sweeps.points import Compose, Point, compose_points
from runner.sweeps.search_space import SearchSpace
from runner.sweeps.study import (
    SWEEPER,
    constraints,
    tell,
    trial_of,
)
from runner.sweeps.summary import Objective
from runner.sweeps.sweep_directory import SweepDirectory

_ENDED = (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED)


class Search:
    """The trials of a study, asked for, run and told.

    Args:
      study: Optuna's.
      storage: where it is.
      space: what is searched.
      custom: a function (trial) -> further overrides, which may itself draw values; None for none.
      sweeper: the sweeper's configuration.
      objectives: what decides.
      directory: the sweep's.
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: Any,
        space: SearchSpace,
        custom: Any,
        sweeper: Mapping[str, Any],
        objectives: Sequence[Objective],
        directory: SweepDirectory,
    ) -> None:
        self._study, self._storage = study, storage
        self._space, self._custom = space, custom
        self._sweeper, self._objectives, self._directory = sweeper, objectives, directory
        self._constraints = constraints(sweeper)

    def run(self, execution: Execution, compose: Compose) -> None:
        """Goes on until `n_trials` trials of the study have finished.

        Trials that a process left unfinished are gone on with first.
        """
        with self._at_work():
            left = self._left_behind()
            if left:
                self._carry_out(left, execution)
            while not self._directory.stopped():
                with FileLock(self._directory.path / "ask.lock"):
                    wanted = min(int(self._sweeper["n_jobs"]), self._missing())
                    asked = [self._ask() for _ in range(wanted)]
                if not asked:
                    return
                self._check(asked, compose)
                self._carry_out(asked, execution)

    def _missing(self) -> int:
        """Returns how many trials are to be started yet."""
        states = [each.state for each in self._trials()]
        running = [each for each in self._trials() if self._is_swept(each)]
        finished = len([each for each in states if each.is_finished()])
        return int(self._sweeper["n_trials"]) - finished - len(running)

    def _ask(self) -> Planned:
        trial = self._study.ask(self._space.distributions())
        trial.set_user_attr(SWEEPER, this_process())
        more = self._custom(trial) if self._custom is not None else None
        return self._planned(trial, self._space.point(trial.params, more))

    def _planned(self, trial: optuna.Trial, point: Point) -> Planned:
        told = {
            "name": self._study.study_name,
            "trial": trial.number,
            "pruner": self._sweeper["pruner"],
            "metric": self._objectives[0].name.removeprefix("validation/"),
        }
        single = len(self._objectives) == 1
        metric = self._objectives[0].name
        return Planned(trial.number, point, metric=metric, study=told if single else None)

    def _check(self, asked: Sequence[Planned], compose: Compose) -> None:
        """Finds mistakes that a custom space has made; its trials have failed then."""
        try:
            compose_points([each.point for each in asked], compose)
        except ConfigError:
            for each in asked:
                self._study.tell(each.number, state=TrialState.FAIL)
            raise

    def _carry_out(self, planned: Sequence[Planned], execution: Execution) -> None:
        for attempt in execution.run(planned):
            self._tell(attempt)

    def _tell(self, attempt: Attempt) -> None:
        trial = trial_of(self._study, self._storage, attempt.trial)
        for name, value in attempt.metrics.items():
            trial.set_user_attr(name, value)
        for name, violation in self._constraints.items():
            if attempt.metrics:
                trial.set_constraint(name, violation(attempt.metrics))
        tell(self._study, attempt.trial, attempt, self._objectives)

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _left_behind(self) -> list[Planned]:
        """Returns trials of processes that are gone; tells of those that ended all the same."""
        last = {each.trial: (file, each) for file, each in _attempts(self._directory)}
        found = []
        for trial in self._trials():
            if trial.state is not TrialState.RUNNING or trial.number not in last:
                continue
            if self._is_swept(trial):
                continue
            file, attempt = last[trial.number]
            if attempt.status in _ENDED:
                self._tell(attempt)
                continue
            file.settle()
            resumed = trial_of(self._study, self._storage, trial.number)
            resumed.set_user_attr(SWEEPER, this_process())
            point = Point(attempt.overrides, attempt.values)
            found.append(Planned(trial.number, point, metric=attempt.metric, study=attempt.study))
        return found

    def _is_swept(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether a living process, of those that share this directory, sweeps a trial."""
        name = trial.user_attrs.get(SWEEPER)
        if trial.state is not TrialState.RUNNING or name is None:
            return False
        if name == this_process():
            return True
        lock = self._process_lock(name)
        if not Path(lock.lock_file).exists():
            return False
        try:
            with lock.acquire(timeout=0):
                return False
        except Timeout:
            return True

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Lets others see that this process lives."""
        lock = self._process_lock(this_process())
        Path(lock.lock_file).parent.mkdir(exist_ok=True)
        with lock:
            yield

    def _process_lock(self, name: str) -> FileLock:
        return FileLock(self._directory.path / "processes" / f"{name.replace(':', '_')}.lock")


def _attempts(directory: SweepDirectory) -> list[tuple[AttemptFile, Attempt]]:
    return [(file, file.read()) for file in directory.attempts()]
