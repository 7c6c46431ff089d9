"""The sweeper that searches with Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.config import RunConfig
from runner.errors import ConfigError, Problem
from runner.sweeps.attempt import Attempt
from runner.sweeps.execution import Execution
from runner.sweeps.extras import require_extra
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.summary import Objective, ranked_trials
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.sweeper import RunnerSweeper

if TYPE_CHECKING:
    from runner.sweeps.search_space import SearchSpace


class SearchSweep(RunnerSweeper):
    """Searches; several processes may do so together.

    Args:
      n_trials: how many trials of the study are to have finished, pruned and failed ones included.
      n_jobs: how many are launched at once.
      study_name: by default the experiment's name and what identifies the sweep.
      storage: a database's URL, or a `_target_`; null is SQLite in the sweep's folder.
      sampler: a `_target_` of optuna.samplers.
      pruner: a `_target_` of optuna.pruners.
      objectives: metric -> goal; by default `train.objective` and `train.goal`.
      constraints: name -> bounds of the metric of that name, `{max: 0.5}`, or the `_target_` of a
        function (metrics) -> number that is at most 0 where they are met.
      params: key -> what is searched, in the grammar of the command line, which wins over it.
      custom_search_space: the `_target_` of a function (optuna.Trial) -> further overrides or None.
    """

    joins = True

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

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns points with every choice and every end of a range."""
        require_extra("optuna", "hydra/sweeper=optuna")
        _check_numbers(self._sweeper)
        from runner.sweeps.search_space import search_space

        params = self.parsed_params(self._sweeper.get("params") or {}, overrides)
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
        self._objectives = objectives_of(self._sweeper, own)
        metrics = [f"validation/{name}" for name in ("loss", *config.metrics)]
        problems = [
            Problem(
                f"hydra.sweeper.objectives names {each.name!r}",
                "no evaluation gives it",
                choices=tuple(metrics),
            )
            for each in self._objectives
            if each.name not in metrics
        ]
        if problems:
            raise ConfigError(*problems)
        check(Path(), self._sweeper)
        return self._objectives

    def search(self) -> str:
        """Returns the space and the study."""
        named = ("params", "custom_search_space", "study_name", "objectives", "constraints")
        return json.dumps({key: self._sweeper.get(key) for key in named}, sort_keys=True)

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Searches, and returns the last attempts of all processes at this sweep."""
        from runner.sweeps.search import Search
        from runner.sweeps.study import custom_space, open_storage, open_study

        if self._space is None:
            raise RuntimeError("points has not been called")
        record = directory.read() or {}
        name = composed[0].config.name
        storage = open_storage(directory.path, self._sweeper.get("storage"))
        study = open_study(
            storage,
            self._sweeper.get("study_name") or f"{name}-{record.get('fingerprint', '')}",
            self._sweeper,
            self._objectives,
        )
        custom = custom_space(self._sweeper)
        search = Search(
            study, storage, self._space, custom, self._sweeper, self._objectives, directory
        )
        self._study = study
        search.run(execution, self.compose)
        attempts = [file.read() for file in directory.attempts()]
        return list({each.trial: each for each in attempts}.values())

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the study's best, all of them where there are several objectives.

        None of them violates a constraint.
        """
        numbers = {each.number for each in self._study.best_trials}
        ranked = ranked_trials(trials, objectives)
        found = [each for each in ranked if each.trial in numbers]
        return found if len(objectives) > 1 else found[:1]

    def study(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> Any:
        """Returns the study."""
        return self._study


def _check_numbers(sweeper: Mapping[str, Any]) -> None:
    problems = [
        Problem(f"hydra.sweeper.{key} is {sweeper.get(key)!r}", "it must be a whole number above 0")
        for key in ("n_trials", "n_jobs")
        if not isinstance(sweeper.get(key), int) or sweeper[key] < 1
    ]
    if problems:
        raise ConfigError(*problems)
