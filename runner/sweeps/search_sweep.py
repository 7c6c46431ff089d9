"""The sweeper that searches with Optuna."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.config.choices import Resume
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, SweepError, require_all
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.execution import Execution
from runner.sweeps.extras import require_extra
from runner.sweeps.points import ComposedPoint, Point, compose_points
from runner.sweeps.summary import Objective, ranked_trials
from runner.sweeps.sweep_directory import RECORD, SweepDirectory
from runner.sweeps.sweeper import RunnerSweeper
from runner.system.atomic_files import write_json

if TYPE_CHECKING:
    from runner.sweeps.search import Search
    from runner.sweeps.search_space import SearchSpace


class SearchSweep(RunnerSweeper):
    """Searches; several processes may do so together.

    Args:
      n_trials: how many trials of the study are to have finished, pruned ones included.
      n_jobs: how many are launched at once.
      study_name: by default the experiment's name and what identifies the sweep.
      storage: a database's URL, or a `_target_`; null is SQLite in the sweep's folder.
      sampler: a `_target_` of optuna.samplers.
      pruner: a `_target_` of optuna.pruners.
      objectives: metric -> goal; by default `train.objective` and `train.goal`.
      constraints: name -> bounds of the metric of that name, `{max: 0.5}`, or `{_target_: ...}` of
        a function (metrics) -> number that is at most 0 where it is met.
      params: key -> what is searched, in the grammar of the command line, which wins over it.
      custom_search_space: the `_target_` of a function (optuna.Trial) -> further overrides or None.
    """

    joins = True
    again = (
        "the same command goes on with those that were killed or not started, and tries others in"
        " place of those that failed"
    )

    def __init__(self, **sweeper: Any) -> None:
        super().__init__()
        self._sweeper: Mapping[str, Any] = {
            key: OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for key, value in sweeper.items()
        }
        self._space: SearchSpace | None = None
        self._objectives: list[Objective] = []
        self._study: Any = None
        self._search: Search | None = None
        self._complete = False

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns points with every choice and every end of a range."""
        require_extra("optuna", "hydra/sweeper=optuna")
        _check_settings(self._sweeper)
        from runner.sweeps.search_space import search_space

        params = self.parsed_params(self._sweeper.get("params"), overrides)
        self._space = search_space([*params, *overrides])
        if not self._space.dimensions and self._sweeper.get("custom_search_space") is None:
            raise ConfigError(
                Problem(
                    "there is nothing to search",
                    "no override holds several values",
                    "for example 'optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))'",
                )
            )
        return self._space.samples()

    def objectives(self, config: RunConfig) -> list[Objective]:
        """Returns those of the sweeper's configuration, or the experiment's."""
        from runner.sweeps.study import check, objectives_of

        (own,) = super().objectives(config)
        metrics = [f"validation/{name}" for name in ("loss", *config.metrics)]
        require_all(
            lambda: objectives_of(self._sweeper, own, metrics),
            lambda: check(Path(), self._sweeper, metrics),
        )
        self._objectives = objectives_of(self._sweeper, own, metrics)
        self._check_known_study()
        self._check_draws()
        return self._objectives

    def _check_known_study(self) -> None:
        """Checks a study that is named, before anything is made."""
        import optuna

        from runner.sweeps.study import check_study
        from runner.sweeps.study_storage import open_storage

        storage, name = self._sweeper.get("storage"), self._sweeper.get("study_name")
        if storage is None or not name:
            return
        opened = open_storage(Path(), storage)
        if name in optuna.get_all_study_names(opened):
            study = optuna.load_study(study_name=name, storage=opened)
            check_study(study, self._objectives, self._given_space)

    def _check_draws(self) -> None:
        from runner.sweeps.search_space import try_sampler
        from runner.sweeps.study import custom_points, custom_space

        custom = custom_space(self._sweeper)
        if custom is not None:
            points = custom_points(self._given_space, custom)
            self.check_trials(compose_points(points, self.compose))
        try_sampler(self._sweeper, self._given_space, custom, self._objectives)

    @property
    def _given_space(self) -> SearchSpace:
        if self._space is None:
            raise RuntimeError("points has not been called")
        return self._space

    def swept(self, points: Sequence[Point]) -> Collection[str] | None:
        """Returns the names of the keys that are searched; None with a space of the user's own."""
        if self._sweeper.get("custom_search_space") is not None:
            return None
        return super().swept(points)

    def identity(self) -> str:
        """Returns the space and the study, whose numbers of trials mean nothing in another one."""
        named = ("params", "custom_search_space", "study_name", "objectives", "constraints")
        found = {key: self._sweeper.get(key) for key in named}
        if self._sweeper.get("storage") is not None:
            found["storage"] = self._sweeper["storage"]
        return json.dumps(found, sort_keys=True)

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Searches, and returns the last attempts of all processes at this sweep.

        A mistake that shows only now, as of a constraint, ends the search and is kept: what is done
        is told first.

        Raises:
          ConfigError: a mistake has shown before any trial was done.
          SweepError: so has the launcher, or the sampler.
        """
        from runner.sweeps.study import attempt_of, judged

        wanted = self._sweeper["n_trials"]
        if self._search is None:
            self._search = self._opened(composed[0].config, directory)
            before = self._search.finished()
            if before > wanted:
                self.screen.line(f"{before} trials have finished before, and n_trials is {wanted}")
            elif before:
                self.screen.line(f"{before} of {wanted} trials have finished before")
        search, study = self._search, self._study
        try:
            if self.cut_short is None:
                search.run(execution, self.compose)
        except (ConfigError, SweepError) as error:
            if not any(file.read().status in _DONE for file in directory.attempts()):
                raise
            self.cut_short = error
        self._complete = search.finished() >= wanted
        if search.exhausted():
            self.again = (
                "the same command goes on with those that were killed or not started; the sampler"
                " has nothing else to try, and resume=never begins another study"
            )
        # Of trials from other folders, the study knows.
        stored = study.get_trials(deepcopy=False)
        known = [attempt_of(each, self._objectives) for each in stored]
        attempts = [judged(file.read(), self._objectives) for file in directory.attempts()]
        infeasible = {
            each.number for each in stored if max(each.constraints.values(), default=0) > 0
        }
        return [
            replace(each, infeasible=each.trial in infeasible and each.status in _FEASIBLE)
            for each in {each.trial: each for each in [*known, *attempts]}.values()
        ]

    def _opened(self, config: RunConfig, directory: SweepDirectory) -> Search:
        from runner.sweeps.search import Search
        from runner.sweeps.study import check_study, custom_space, open_study
        from runner.sweeps.study_storage import open_storage

        storage = open_storage(directory.path, self._sweeper.get("storage"))
        name = self._study_name(config, directory)
        self._study = open_study(storage, name, self._sweeper, self._objectives)
        check_study(self._study, self._objectives, self._given_space)
        return Search(
            self._study,
            storage,
            self._given_space,
            custom_space(self._sweeper),
            self._sweeper,
            self._objectives,
            directory,
            self.screen.line,
        )

    def _study_name(self, config: RunConfig, directory: SweepDirectory) -> str:
        """Returns the name of the study, the same whenever this sweep is gone on with."""
        given: str | None = self._sweeper.get("study_name")
        if given:
            return given
        with FileLock(directory.path / "study.lock"):
            record = directory.read() or {}
            if "study" not in record:
                # Elsewhere, a study of this sweep may have been begun before.
                new = f"-{uuid.uuid4().hex[:8]}" if config.resume is Resume.never else ""
                record["study"] = f"{config.name}-{record.get('fingerprint', '')}{new}"
                write_json(directory.path / RECORD, record)
            return str(record["study"])

    def unmended(self, trials: Sequence[Attempt]) -> list[Attempt]:
        """Returns the failures; none where others have taken their place.

        None either where a mistake has ended the search, which is told instead.
        """
        ended = self._complete or self.cut_short is not None
        return [] if ended else super().unmended(trials)

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the study's best, all of them where there are several objectives.

        None of them violates a constraint.
        """
        numbers = {each.number for each in self._study.best_trials}
        found = [each for each in ranked_trials(trials, objectives) if each.trial in numbers]
        return found if len(objectives) > 1 else found[:1]

    def study(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> Any:
        """Returns the study."""
        return self._study


# Those of which it matters whether they are feasible.
_FEASIBLE = (TrialStatus.FINISHED, TrialStatus.PRUNED)
_DONE = (*_FEASIBLE, TrialStatus.FAILED)

# Settings that are built, with an example of each.
_NODES = {
    "sampler": "hydra/sweeper/sampler=tpe",
    "pruner": "hydra/sweeper/pruner=median",
    "custom_search_space": "'hydra.sweeper.custom_search_space={_target_: my.space}'",
    "storage": "hydra.sweeper.storage=sqlite:///study.db",
}


def _lacks_target(key: str, value: Any) -> bool:
    if key == "storage" and not isinstance(value, Mapping):
        return False  # A URL, or the default.
    if key == "custom_search_space" and value is None:
        return False
    return not isinstance(value, Mapping) or "_target_" not in value


def _check_settings(sweeper: Mapping[str, Any]) -> None:
    problems = [
        Problem(f"hydra.sweeper.{key} is {sweeper.get(key)!r}", "it must be a whole number above 0")
        for key in ("n_trials", "n_jobs")
        if type(sweeper.get(key)) is not int or sweeper[key] < 1
    ]
    problems += [
        Problem(
            f"hydra.sweeper.{key} has no `_target_`",
            "it must be a mapping that has one",
            f"for example {example}",
        )
        for key, example in _NODES.items()
        if _lacks_target(key, sweeper.get(key))
    ]
    if problems:
        raise ConfigError(*problems)
