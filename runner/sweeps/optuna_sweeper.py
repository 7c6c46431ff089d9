"""`hydra/sweeper: optuna`, a search with Optuna."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from runner.config.choices import Resume
from runner.config.instantiation import build_target
from runner.config.objective import metric_names
from runner.config.schema import RunConfig
from runner.config.spelling import plain_node
from runner.errors import ConfigError, Problem, SweepError, require_all
from runner.sweeps.execution import Execution
from runner.sweeps.objectives import (
    Objective,
    fail_if_nan,
    objectives_of,
    ranked_trials,
)
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.search import Search, try_search
from runner.sweeps.search_space import SearchSpace, search_space
from runner.sweeps.study import (
    DECIDED,
    PRUNER,
    SearchStudy,
    build_sampler,
    open_storage,
    open_study,
)
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.sweeps.sweeper import RunnerSweeper
from runner.system.locks import locked


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _has_target(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


# Setting -> whether a value is valid, and the valid values in words.
_SETTINGS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n_trials": (_is_count, "a whole number above 0"),
    "n_jobs": (_is_count, "a whole number above 0"),
    "sampler": (_has_target, "a mapping with a `_target_`"),
    "pruner": (_has_target, "a mapping with a `_target_`"),
    "storage": (
        lambda value: value is None or isinstance(value, str) or _has_target(value),
        "a database's URL, a mapping with a `_target_`, or null",
    ),
}


class OptunaSweeper(RunnerSweeper):
    """Searches with Optuna; several processes may work at one search.

    Args:
      n_trials: how many trials of the study to finish, including pruned ones.
      n_jobs: how many are launched at once.
      study_name: by default the experiment's name and the fingerprint of the sweep.
      storage: a database's URL, or a `_target_`; null is SQLite in the sweep's folder.
      sampler: a `_target_` of optuna.samplers.
      pruner: a `_target_` of optuna.pruners.
      objectives: metric -> goal; by default `train.objective` and `train.goal`.
      params: key -> range or choices, in the grammar of the command line, which wins over it.
    """

    several_processes = True
    rerun = (
        "the same command resumes trials that were killed or not started, and replaces trials"
        " that failed by others"
    )

    def __init__(self, **sweeper: Any) -> None:
        super().__init__()
        self._settings: Mapping[str, Any] = {k: plain_node(v) for k, v in sweeper.items()}
        self._space: SearchSpace
        self._objectives: list[Objective] = []
        self.study: SearchStudy | None
        self._complete = False

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns points with every choice and every end of a range."""
        problems = [
            Problem(f"hydra.sweeper.{key} is {self._settings.get(key)!r}", f"it must be {valid}")
            for key, (is_valid, valid) in _SETTINGS.items()
            if not is_valid(self._settings.get(key))
        ]
        if problems:
            raise ConfigError(*problems)
        params = self.parsed_params(self._settings.get("params"), overrides)
        self._space = search_space([*params, *overrides])
        if not self._space.dimensions:
            raise ConfigError.of(
                "there is nothing to search",
                "no override holds several values",
                "for example 'optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))'",
            )
        return self._space.samples()

    def objectives(self, config: RunConfig) -> list[Objective]:
        """Checks the settings, and returns their objectives, or else the experiment's.

        Raises:
          ConfigError: with every mistake in the sweeper's configuration.
        """
        settings = self._settings
        (default,) = super().objectives(config)
        names = metric_names(vars(config))
        metrics = None if names is None else [f"validation/{name}" for name in names]
        require_all(
            lambda: objectives_of(settings, default, metrics),
            lambda: build_sampler(settings),
            lambda: build_target(PRUNER, settings["pruner"]),
            lambda: settings.get("storage") and open_storage(Path(), settings["storage"]),
        )
        self._objectives = objectives_of(settings, default, metrics)
        try_search(settings, self._space, self._objectives)
        return self._objectives

    def identity(self) -> str:
        """Returns the space and the study, in which trials are numbered."""
        keys = ("params", "study_name", "objectives")
        settings = {key: self._settings.get(key) for key in keys}
        if self._settings.get("storage") is not None:
            settings["storage"] = self._settings["storage"]
        return json.dumps(settings, sort_keys=True)

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Searches, and returns the last attempts of all processes at this sweep.

        An error that occurs only now, for example in the sampler, ends the search. It is raised
        once the results have been reported.

        Raises:
          ConfigError: for such an error before any trial has ended.
          SweepError: for an error of the launcher or the sampler before any trial has ended.
        """
        wanted = self._settings["n_trials"]
        self.study = study = open_study(
            open_storage(directory.path, self._settings.get("storage")),
            self._study_name(composed[0].config, directory),
            self._settings,
            self._objectives,
        )
        before = len(study.finished())
        if before > wanted:
            self.screen.line(f"{before} trials have finished before, and n_trials is {wanted}")
        elif before:
            self.screen.line(f"{before} of {wanted} trials have finished before")
        try:
            search = Search(study, self._space, self._settings, directory, self.screen)
            search.run(execution, self.compose)
        except (ConfigError, SweepError) as error:
            if not any(file.read().status in DECIDED for file in directory.attempts()):
                raise
            self.late_error = error
        self._complete = len(study.finished()) >= wanted
        # Only the study has the trials of processes in other folders.
        last = {attempt.trial: attempt for attempt in study.ended()}
        for file in directory.attempts():
            attempt = fail_if_nan(file.read(), self._objectives)
            last[attempt.trial] = attempt
        return list(last.values())

    def _study_name(self, config: RunConfig, directory: SweepDirectory) -> str:
        """Returns the name of the study, the same whenever this sweep is resumed."""
        name: str | None = self._settings.get("study_name")
        if name:
            return name
        with locked(directory.path / "study.lock", "the study"):
            record = directory.read() or {}
            if "study" not in record:
                # Elsewhere, a study of the same sweep may exist.
                new = f"-{uuid.uuid4().hex[:8]}" if config.resume is Resume.never else ""
                record["study"] = f"{config.name}-{record.get('fingerprint', '')}{new}"
                directory.write(record)
            return str(record["study"])

    def failures(self, trials: Sequence[Attempt]) -> list[Attempt]:
        """Returns the failures, unless other trials have replaced them.

        There are none either if an error has ended the search, which is raised instead.
        """
        ended = self._complete or self.late_error is not None
        return [] if ended else super().failures(trials)

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the study's best, all of them where there are several objectives."""
        numbers = {trial.number for trial in self.study.best_trials} if self.study else set()
        best = [trial for trial in ranked_trials(trials, objectives) if trial.trial in numbers]
        return best if len(objectives) > 1 else best[:1]
