"""A search whose trials are functions of their overrides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.config.choices import Goal
from runner.config.composition import Compose
from runner.errors import PrunedRunError, SweepError
from runner.runs.run_directory import FAILED, FINISHED, PRUNED, RUNNING, RunRecord, open_run
from runner.sweeps.execution import Execution
from runner.sweeps.job import Job, carry_out
from runner.sweeps.search import Search
from runner.sweeps.search_space import search_space
from runner.sweeps.study import open_study
from runner.sweeps.study_storage import open_storage
from runner.sweeps.summary import Objective
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Trial

OBJECTIVES = [Objective("validation/loss", Goal.minimize)]


@dataclass
class Sweep:
    """A search of which each trial calls `work` with its overrides.

    Attributes:
      folder: of the sweep.
      compose: composes a configuration.
      work: what a trial does; returns its metrics, step by step.
      settings: of the sweeper, besides those of every test.
      batches: how many trials were launched at once, each time.
    """

    folder: Path
    compose: Compose
    work: Callable[[Sequence[str]], Sequence[Mapping[str, float]]]
    settings: dict[str, Any] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)

    @property
    def sweeper(self) -> dict[str, Any]:
        return {
            "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
            "pruner": {"_target_": "optuna.pruners.NopPruner"},
            "n_trials": 4,
            "n_jobs": 1,
            **self.settings,
        }

    @property
    def directory(self) -> SweepDirectory:
        return SweepDirectory(self.folder)

    def study(self) -> optuna.Study:
        return open_study(self.storage(), "s", self.sweeper, OBJECTIVES)

    def storage(self) -> Any:
        return open_storage(self.folder, None)

    def run(
        self, *overrides: str, custom: Any = None, say: Callable[[str], object] = print
    ) -> optuna.Study:
        study = self.study()
        parsed = OverridesParser.create().parse_overrides(["+experiment=tiny", *overrides])
        search = Search(
            study,
            self.storage(),
            search_space(parsed),
            custom,
            self.sweeper,
            OBJECTIVES,
            self.directory,
            say,
        )
        search.run(Execution(self.directory, self._launch, retries=0), self.compose)
        return study

    def _launch(self, overrides: Sequence[Sequence[str]], first: int) -> None:
        self.batches.append(len(overrides))
        for number, each in enumerate(overrides, first):

            def train(trial: Trial, each: Sequence[str] = each) -> float:
                container = self.folder / "runs"
                record = RunRecord("tiny", str(each), RUNNING, {}, trial=trial.name(container))
                run = open_run(container, record, "auto")
                status = FAILED
                try:
                    run.best.mkdir(exist_ok=True)
                    trial.started(run.path)
                    best: float = float("inf")
                    for step, metrics in enumerate(self.work(each)):
                        best = min(metrics["loss"], best)
                        run.best_record.write_text(json.dumps({"metrics": {"loss": best}}))
                        trial.evaluated(metrics, step)
                        trial.check()
                    status = FINISHED
                    return best
                except PrunedRunError:
                    status = PRUNED
                    raise
                finally:
                    run.update(status=status)
                    run.release()

            with contextlib.suppress(SweepError):
                carry_out(Job(self.directory, self.directory.attempt(number)), train)
