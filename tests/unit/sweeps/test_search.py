"""Searches whose trials are functions of their overrides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pytest
from filelock import FileLock
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig
from optuna.trial import TrialState

from runner.config import Goal
from runner.errors import ConfigError, SweepError
from runner.run_directory import RunDirectory
from runner.sweeps.attempt import TrialStatus
from runner.sweeps.execution import Execution
from runner.sweeps.job import Job, carry_out
from runner.sweeps.points import Compose
from runner.sweeps.search import Search
from runner.sweeps.search_space import search_space
from runner.sweeps.study import SWEEPER, open_storage, open_study, trial_of
from runner.sweeps.summary import Objective
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Trial
from tests.tiny.composing import composing
from tests.tiny.spaces import conditional, misspelt

OBJECTIVES = [Objective("validation/loss", Goal.minimize)]


class Killed(BaseException):
    """The whole process ends."""


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

    def run(self, *overrides: str, custom: Any = None) -> optuna.Study:
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
        )
        search.run(Execution(self.directory, self._launch, retries=0), self.compose)
        return study

    def _launch(self, overrides: Sequence[Sequence[str]], first: int) -> None:
        self.batches.append(len(overrides))
        for number, each in enumerate(overrides, first):

            def train(trial: Trial, each: Sequence[str] = each, number: int = number) -> float:
                run = RunDirectory(self.folder / "runs" / f"{number}")
                run.best.mkdir(parents=True)
                trial.started(run.path)
                best: float = float("inf")
                for step, metrics in enumerate(self.work(each)):
                    best = min(best, metrics["loss"])
                    run.best_record.write_text(f'{{"metrics": {{"loss": {best}}}}}')
                    trial.evaluated(metrics, step)
                    trial.check()
                return best

            with contextlib.suppress(SweepError):
                carry_out(Job(self.directory, self.directory.attempt(number)), train)


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    with composing(tmp_path / "conf"):
        loader = GlobalHydra.instance().config_loader()

        def compose(overrides: Sequence[str]) -> DictConfig:
            return loader.load_configuration("config", list(overrides), RunMode.RUN)

        def work(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
            return [{"loss": float(_value(overrides, "optimizer.learning_rate"))}]

        (tmp_path / "sweep").mkdir()
        yield Sweep(tmp_path / "sweep", compose, work)


def _value(overrides: Sequence[str], key: str) -> str:
    return next(each for each in overrides if each.startswith(f"{key}=")).partition("=")[2]


RATE = "optimizer.learning_rate=interval(0.25, 0.75)"


def test_trials_are_asked_for_run_and_told(sweep: Sweep) -> None:
    study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert [trial.values for trial in study.trials] == [
        [trial.params["optimizer.learning_rate"]] for trial in study.trials
    ]
    assert study.trials[0].user_attrs["loss"] == study.trials[0].value
    assert sweep.batches == [1, 1, 1, 1]


def test_several_at_once_and_never_too_many(sweep: Sweep) -> None:
    sweep.settings["n_jobs"] = 3
    sweep.run(RATE)
    assert sweep.batches == [3, 1]


def test_what_has_finished_counts_when_a_study_goes_on(sweep: Sweep) -> None:
    sweep.run(RATE)
    sweep.settings["n_trials"] = 6
    assert len(sweep.run(RATE).trials) == 6
    assert len(sweep.batches) == 6


def test_trials_of_a_process_that_was_killed_are_gone_on_with(sweep: Sweep) -> None:
    finish, started = sweep.work, []

    def die(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
        started.append(overrides)
        if len(started) == 2:
            raise Killed
        return finish(overrides)

    sweep.work = die
    with pytest.raises(Killed):
        sweep.run(RATE)
    first, second = sweep.study().trials
    assert (first.state, second.state) == (TrialState.COMPLETE, TrialState.RUNNING)
    # As if it had been another process, which is gone.
    trial_of(sweep.study(), sweep.storage(), 1).set_user_attr(SWEEPER, "elsewhere:1")
    study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert started[2] == started[1]
    assert study.trials[1].params == second.params


def test_a_trial_that_ended_untold_is_told(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 1
    study = sweep.run(RATE)
    trial = study.ask({})
    trial.set_user_attr(SWEEPER, "elsewhere:1")
    last = sweep.directory.attempt(0).read()
    (number,) = sweep.directory.add([last])
    sweep.directory.attempt(number).update(trial=1, metrics={"loss": 0.125})
    sweep.settings["n_trials"] = 2
    study = sweep.run(RATE)
    assert [each.value for each in study.trials] == [last.objective, 0.125]
    assert sweep.batches == [1]


def test_a_trial_of_a_living_process_is_left_alone(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 2
    trial = sweep.study().ask({})
    trial.set_user_attr(SWEEPER, "elsewhere:1")
    lock = sweep.folder / "processes" / "elsewhere_1.lock"
    lock.parent.mkdir()
    with FileLock(lock):
        study = sweep.run(RATE)
    assert [each.state for each in study.trials] == [TrialState.RUNNING, TrialState.COMPLETE]


def test_hopeless_trials_are_pruned(sweep: Sweep) -> None:
    sweep.settings["pruner"] = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}
    sweep.settings["n_trials"] = 1
    sweep.work = lambda overrides: [{"loss": 0.5}, {"loss": 2.0}, {"loss": 0.0}]
    (trial,) = sweep.run(RATE).trials
    assert trial.state is TrialState.PRUNED
    assert trial.intermediate_values == {0: 0.5, 1: 2.0}
    attempt = sweep.directory.attempt(0).read()
    assert (attempt.status, attempt.message) == (TrialStatus.PRUNED, "pruned at step 1")


def test_failures_count_as_finished_and_leave_the_study(sweep: Sweep) -> None:
    def work(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
        raise ValueError("no")

    sweep.work = work
    assert {trial.state for trial in sweep.run(RATE).trials} == {TrialState.FAIL}
    assert len(sweep.batches) == 4


def test_a_failure_stops_the_search_on_request(sweep: Sweep) -> None:
    sweep.directory.stop_on_failure(True)
    sweep.work = lambda overrides: [{"loss": float("nan")}]
    (trial,) = sweep.run(RATE).trials
    assert trial.state is TrialState.FAIL


def test_constraints_are_told(sweep: Sweep) -> None:
    sweep.settings |= {"constraints": {"validation/loss": {"min": 0.5}}, "n_trials": 8}
    study = sweep.run(RATE)
    violations = [trial.constraints["validation/loss"] for trial in study.trials]
    assert violations == [0.5 - float(str(trial.value)) for trial in study.trials]
    assert study.best_trial.value is not None
    assert study.best_trial.value >= 0.5


def test_a_custom_space_draws_and_derives(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 8
    sweep.work = lambda overrides: [{"loss": float(_value(overrides, "+model.units"))}]
    study = sweep.run(custom=conditional)
    for trial, file in zip(study.trials, sweep.directory.attempts(), strict=True):
        values = file.read().values
        assert values["model.units"] == str(trial.params["+model.units"])
        derived = 0.1 / trial.params["+model.units"]
        sgd = trial.params["optimizer"] == "sgd"
        assert values.get("optimizer.learning_rate") == (str(derived) if sgd else None)


def test_a_mistake_of_a_custom_space_ends_the_search(sweep: Sweep) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rat"):
        sweep.run(custom=misspelt)
    (trial,) = sweep.study().trials
    assert trial.state is TrialState.FAIL
    assert sweep.batches == []
