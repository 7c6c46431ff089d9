"""The trials of a search: asked for, run, and recorded in its study, by one process or several.

The study is what processes at one search share: a trial belongs to the process that its attribute
`runner.sweeper` names, for as long as that process holds its lock in `processes/`. Trials that a
process left unfinished are claimed by the next process that joins the search.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from filelock import FileLock
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from runner.config.composition import Compose
from runner.console import Screen
from runner.errors import ConfigError, SweepError
from runner.sweeps.execution import Execution
from runner.sweeps.objectives import Objective
from runner.sweeps.points import Point, check_targets, compose_points
from runner.sweeps.search_space import SearchSpace
from runner.sweeps.study import DECIDED, OWNER, SearchStudy, open_study
from runner.sweeps.sweep_directory import Attempt, AttemptFile, SweepDirectory
from runner.system.locks import is_held, locked, this_process


class Search:
    """Tries points of a space until enough trials of the study have finished."""

    def __init__(
        self,
        study: SearchStudy,
        space: SearchSpace,
        settings: Mapping[str, Any],
        directory: SweepDirectory,
        screen: Screen,
    ) -> None:
        self._study, self._space, self._settings = study, space, settings
        self._directory, self._screen = directory, screen
        # In a container that is started again, host and process have the same numbers as before.
        self._name = f"{this_process().replace(':', '_')}_{uuid.uuid4().hex[:8]}"
        self._replaced: set[int] | None = None

    def run(self, execution: Execution, compose: Compose) -> None:
        """Runs trials until `n_trials` trials of the study have finished or were pruned.

        Unfinished trials of processes that have ended are resumed first. In place of trials that
        failed before, others are asked for. Those that fail meanwhile count, so that a search in
        which every trial fails ends too: the next one replaces them.

        Raises:
          ConfigError: a drawn trial does not compose.
          SweepError: the launcher or the sampler fails.
        """
        with self._alive():
            while not self._directory.stopped():
                with locked(self._directory.path / "ask.lock", "the next trial"):
                    if self._replaced is None:
                        self._begin()
                    living = self._living()
                    claimed = self._claim(living)
                    attempts = [] if claimed else self._ask(living, compose)
                for file in claimed:
                    attempt = file.finalize(say=self._screen.line)
                    if attempt.status in DECIDED:
                        self._record(attempt)
                    else:
                        attempts.append(
                            self._attempt(attempt.trial, attempt.overrides, attempt.values)
                        )
                if not claimed and not attempts:
                    missing = self._settings["n_trials"] - len(self._study.finished())
                    if missing > 0 and self._study.exhausted():
                        self._screen.line("the sampler has nothing more to try")
                    return
                for attempt in execution.run(attempts):
                    self._record(attempt)

    def _begin(self) -> None:
        """Remembers which trials had failed before this process joined the search."""
        self._study.reseed()
        failed = (trial for trial in self._trials() if trial.state is TrialState.FAIL)
        self._replaced = {trial.number for trial in failed}

    def _ask(self, living: Collection[str], compose: Compose) -> list[Attempt]:
        """Draws the trials that are missing, at most as many as are launched at once."""
        counted = [trial for trial in self._trials() if self._counts(trial, living)]
        missing = self._settings["n_trials"] - len(counted)
        count = 0 if self._study.exhausted() else min(self._settings["n_jobs"], missing)
        drawn: list[optuna.Trial] = []
        points: list[Point] = []
        try:
            for _ in range(count):
                drawn.append(self._study.draw(self._space, self._name))
                points.append(self._space.point(drawn[-1].params))
            if points:
                check_targets(compose_points(points, compose))
        except BaseException:
            for trial in drawn:
                self._study.tell(trial.number, state=TrialState.FAIL)
            raise
        return [
            self._attempt(trial.number, point.overrides, point.values)
            for trial, point in zip(drawn, points, strict=True)
        ]

    def _attempt(
        self, trial: int, overrides: tuple[str, ...], values: Mapping[str, str]
    ) -> Attempt:
        """Returns an attempt that starts a trial, or resumes it."""
        objectives = self._study.objectives
        return Attempt(
            trial,
            overrides=overrides,
            values=values,
            metric=objectives[0].name,
            study=self._study.study_name if len(objectives) == 1 else None,
        )

    def _counts(self, trial: FrozenTrial, living: Collection[str]) -> bool:
        """Whether no other trial is to be asked for in place of this one."""
        if trial.state is TrialState.FAIL:
            return trial.number not in (self._replaced or ())
        if trial.state is TrialState.RUNNING:
            return trial.user_attrs.get(OWNER) in living
        return trial.state.is_finished()

    def _claim(self, living: Collection[str]) -> list[AttemptFile]:
        """Takes over trials of processes that have ended, as many as are launched at once.

        A trial whose process died before there was an attempt stays RUNNING in the study, where it
        neither counts nor is shown.

        Returns:
          The files of their last attempts.
        """
        abandoned = [
            trial.number
            for trial in self._trials()
            if trial.state is TrialState.RUNNING and not self._counts(trial, living)
        ]
        last = {file.read().trial: file for file in self._directory.attempts()} if abandoned else {}
        claimed = [number for number in abandoned if number in last][: self._settings["n_jobs"]]
        for number in claimed:
            self._study.claim(number, self._name)
        return [last[number] for number in claimed]

    def _record(self, attempt: Attempt) -> None:
        if self._study.record(attempt).status is not attempt.status:
            self._directory.failed()  # An objective is NaN or missing.

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _living(self) -> set[str]:
        """Returns the names of the living processes at this sweep in this directory."""
        files = (self._directory.path / "processes").glob("*.lock")
        return {file.stem for file in files if is_held(file)}

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Shows to other processes that this one lives."""
        lock = self._directory.path / "processes" / f"{self._name}.lock"
        lock.parent.mkdir(exist_ok=True)
        with FileLock(lock):
            yield


def try_search(
    settings: Mapping[str, Any], space: SearchSpace, objectives: Sequence[Objective]
) -> None:
    """Draws two trials in a study in memory, the second with one known.

    Raises:
      ConfigError: the sampler cannot draw from the space, or not for as many objectives.
    """
    study = open_study(InMemoryStorage(), "tried", settings, objectives)
    for _ in range(2):
        if study.exhausted():
            return
        try:
            trial = study.draw(space, "")
        except SweepError as error:
            raise ConfigError(*error.problems) from error
        study.tell(trial, [0.5] * len(objectives))
