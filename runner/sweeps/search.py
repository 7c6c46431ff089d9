"""A sweep that searches: Optuna's samplers choose the trials, its pruners end the hopeless."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from runner.config.composition import Compose
from runner.errors import Problem, SweepError
from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus, end_of
from runner.sweeps.checks import check_targets
from runner.sweeps.constraints import constraints, violation
from runner.sweeps.execution import Execution, Planned
from runner.sweeps.points import Point, compose_points
from runner.sweeps.search_space import DRAWING_ERRORS, SearchSpace, sampler
from runner.sweeps.study import (
    MESSAGE,
    SWEEPER,
    CustomSpace,
    exhausted,
    judged,
    tell,
    trial_id,
    trial_of,
)
from runner.sweeps.summary import Objective
from runner.sweeps.sweep_directory import SweepDirectory
from runner.system.locks import is_held, this_process

_DECIDED = (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED)
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


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
      say: is told what is waited for.
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: Any,
        space: SearchSpace,
        custom: CustomSpace | None,
        sweeper: Mapping[str, Any],
        objectives: Sequence[Objective],
        directory: SweepDirectory,
        say: Callable[[str], object] = print,
    ) -> None:
        self._study, self._storage = study, storage
        self._space, self._custom = space, custom
        self._sweeper, self._objectives, self._directory = sweeper, objectives, directory
        self._say = say
        self._constraints = constraints(sweeper)
        # In a container that is started again, host and process have the numbers of before.
        self._name = f"{this_process().replace(':', '_')}_{uuid.uuid4().hex[:8]}"
        self._began = False
        self._taken: set[int] = set()
        self._replaced: set[int] = set()

    def run(self, execution: Execution, compose: Compose) -> None:
        """Goes on until `n_trials` trials of the study have finished or were pruned.

        Trials that a process left unfinished are gone on with first. In place of trials that failed
        before, others are asked for. Those that fail meanwhile count, so that a search in which
        every trial fails ends too: the next one replaces them.
        """
        with self._at_work():
            while not self._directory.stopped():
                with FileLock(self._directory.path / "ask.lock"):
                    self._begin()
                    left = self._claim()
                    asked = [] if left else self._ask(compose)
                if not left and not asked:
                    if self.exhausted() and self.finished() < int(self._sweeper["n_trials"]):
                        self._say("the sampler has nothing more to try")
                    return
                planned = [*asked, *self._still_unfinished(left)]
                for attempt in execution.run(planned):
                    self._tell(attempt)

    def _begin(self) -> None:
        """Notes how the study stood when this process came to it."""
        if self._began:
            return
        trials = self._trials()
        self._replaced = {each.number for each in trials if each.state is TrialState.FAIL}
        self._study.sampler = sampler(self._sweeper, len(trials))
        self._began = True

    def finished(self) -> int:
        """Returns how many trials of the study have finished or were pruned."""
        return len([each for each in self._trials() if each.state in _FINISHED])

    def exhausted(self) -> bool:
        """Returns whether the sampler has nothing more to try."""
        return exhausted(self._study, self._sweeper)

    def _ask(self, compose: Compose) -> list[Planned]:
        """Asks for as many trials as are launched at once, and are missing; none if there are none.

        Raises:
          ConfigError: the custom space has made a mistake; the trials have failed then.
          SweepError: so has the sampler, or the study does not take what it draws.
        """
        living = self._living()  # Before the trials: who ends meanwhile has told of them all.
        trials = self._trials()
        counted = len([each for each in trials if self._counts(each, living)])
        missing = int(self._sweeper["n_trials"]) - counted
        planned = []
        try:
            for _ in range(0 if self.exhausted() else min(int(self._sweeper["n_jobs"]), missing)):
                trial = self._drawn()
                more = self._custom(trial) if self._custom is not None else None
                planned.append(self._planned(trial, self._space.point(trial.params, more)))
            if planned:
                check_targets(compose_points([each.point for each in planned], compose))
        except BaseException:
            for each in self._trials():
                mine = each.user_attrs.get(SWEEPER) == self._name
                if mine and each.state is TrialState.RUNNING and each.number not in self._taken:
                    self._fail(each.number)
            raise
        self._taken |= {each.number for each in planned}
        return planned

    def _drawn(self) -> optuna.Trial:
        """Asks for a trial, which from its first moment says whose it is.

        Otherwise nobody could take it over if this process died, or its sampler failed.
        """
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            # Optuna hands out those that wait before it makes others.
            self._study.add_trial(
                create_trial(state=TrialState.WAITING, user_attrs={SWEEPER: self._name})
            )
        try:
            trial = self._study.ask(self._space.distributions())
        except DRAWING_ERRORS as error:
            raise SweepError(
                Problem(
                    "Optuna draws no trial",
                    f"{type(error).__name__}: {error}",
                    "mend hydra.sweeper.sampler or the space; where a study was searched with"
                    " another space, give hydra.sweeper.study_name another name, or resume=never",
                )
            ) from error
        trial.set_user_attr(SWEEPER, self._name)
        return trial

    def _fail(self, number: int) -> None:
        """Gives up a trial that was never started."""
        # Not by a Trial, which would ask the sampler, and that may be what fails.
        identifier = trial_id(self._study, self._storage, number)
        self._storage.set_trial_user_attr(identifier, MESSAGE, "it was not started")
        self._study.tell(number, state=TrialState.FAIL)

    def _counts(self, trial: FrozenTrial, living: Collection[str]) -> bool:
        """Whether no other trial is to be asked for in place of this one."""
        if trial.state is TrialState.FAIL:
            return trial.number not in self._replaced
        if trial.state is TrialState.RUNNING:
            return trial.number in self._taken or trial.user_attrs.get(SWEEPER) in living
        return trial.state in _FINISHED

    def _planned(self, trial: optuna.Trial, point: Point) -> Planned:
        reference = {
            "name": self._study.study_name,
            "trial": trial.number,
            "pruner": self._sweeper["pruner"],
            "metric": self._objectives[0].name.removeprefix("validation/"),
        }
        single = len(self._objectives) == 1
        metric = self._objectives[0].name
        return Planned(trial.number, point, metric=metric, study=reference if single else None)

    def _claim(self) -> list[AttemptFile]:
        """Takes over trials of processes that are gone, as many as are launched at once.

        Returns their last attempts.
        """
        living = self._living()
        left = [
            each
            for each in self._trials()
            if each.state is TrialState.RUNNING and not self._counts(each, living)
        ]
        last = {file.read().trial: file for file in self._directory.attempts()} if left else {}
        claimed = []
        for trial in left:
            if trial.number in last:
                self._of(trial.number).set_user_attr(SWEEPER, self._name)
                self._taken.add(trial.number)
                claimed.append(last[trial.number])
            elif self._was_here(trial.user_attrs.get(SWEEPER)):
                # Its process died before it said what was to be run.
                self._replaced.add(trial.number)
                self._fail(trial.number)
            if len(claimed) == int(self._sweeper["n_jobs"]):
                break
        return claimed

    def _still_unfinished(self, left: Sequence[AttemptFile]) -> list[Planned]:
        """Returns those of other processes' trials that are to be gone on with; tells of others."""
        found = []
        for file in left:
            attempt = end_of(file, self._say)
            if attempt.status in _DECIDED:
                self._tell(attempt)
                continue
            point = Point(attempt.overrides, attempt.values)
            found.append(Planned(attempt.trial, point, metric=attempt.metric, study=attempt.study))
        return found

    def _tell(self, attempt: Attempt) -> None:
        if attempt.status not in _DECIDED:
            return
        if judged(attempt, self._objectives).status is not attempt.status:
            self._directory.failed()
        trial = self._of(attempt.trial)
        for name, value in attempt.metrics.items():
            trial.set_user_attr(name, value)
        for name, constraint in self._constraints.items():
            trial.set_constraint(name, violation(constraint, attempt.metrics))
        tell(self._study, attempt.trial, attempt, self._objectives)

    def _of(self, number: int) -> optuna.Trial:
        return trial_of(self._study, self._storage, number)

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _living(self) -> set[str]:
        """Returns the names of the processes at this sweep, of those that share its directory."""
        files = (self._directory.path / "processes").glob("*.lock")
        return {file.stem for file in files if is_held(file)}

    def _was_here(self, name: str | None) -> bool:
        """Whether a process has been at this sweep in this directory."""
        return name is not None and self._process_lock(name).exists()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Lets others see that this process lives."""
        lock = self._process_lock(self._name)
        lock.parent.mkdir(exist_ok=True)
        with FileLock(lock):
            yield

    def _process_lock(self, name: str) -> Path:
        return self._directory.path / "processes" / f"{name}.lock"
