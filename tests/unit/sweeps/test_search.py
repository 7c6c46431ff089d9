"""Searches whose trials are functions of their overrides."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from filelock import FileLock
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig
from optuna.trial import TrialState

from runner.errors import ConfigError, InterruptedRunError, SweepError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.search import Search
from runner.sweeps.study import SWEEPER, attempt_of
from tests.tiny.composing import composing
from tests.tiny.searching import OBJECTIVES, Sweep
from tests.tiny.spaces import conditional, misspelt, raising


class Killed(BaseException):
    """The whole process ends."""


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
    study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    assert started[2] == started[1]
    assert study.trials[1].params == second.params


def test_a_trial_that_ended_untold_is_told(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 1
    study = sweep.run(RATE)
    trial = study.ask({})
    trial.set_user_attr(SWEEPER, "elsewhere_1")
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
    trial.set_user_attr(SWEEPER, "elsewhere_1")
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


def test_trials_with_the_same_values_have_a_run_each(sweep: Sweep) -> None:
    sweep.settings["pruner"] = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}
    sweep.settings["n_trials"] = 3
    works = iter([[{"loss": 2.0}], None, [{"loss": 0.5}], [{"loss": 0.5}]])

    def work(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
        found = next(works)
        if found is None:
            raise ValueError("no")
        return found

    sweep.work = work
    sweep.run("optimizer=choice(adam)")
    sweep.run("optimizer=choice(adam)")
    attempts = [file.read() for file in sweep.directory.attempts()]
    assert [each.status.value for each in attempts] == ["PRUNED", "FAILED", "FINISHED", "FINISHED"]
    assert len({each.overrides for each in attempts}) == 1
    assert len({each.run_dir for each in attempts}) == 4


def test_a_failure_is_replaced_by_the_next_search_and_not_by_the_same(sweep: Sweep) -> None:
    started: list[str] = []
    finish = sweep.work

    def work(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
        started.append(_value(overrides, "optimizer.learning_rate"))
        if len(started) in (2, 3):
            raise ValueError("no")
        return finish(overrides)

    sweep.work = work
    states = [trial.state for trial in sweep.run(RATE).trials]
    complete, fail = TrialState.COMPLETE, TrialState.FAIL
    assert states == [complete, fail, fail, complete]
    states = [trial.state for trial in sweep.run(RATE).trials]
    assert states == [complete, fail, fail, complete, complete, complete]
    # The seed of the sampler draws nothing twice.
    assert len(set(started)) == 6
    assert sweep.run(RATE).trials[5:] == sweep.study().trials[5:]
    assert len(started) == 6


def test_a_trial_that_was_killed_is_gone_on_with_by_the_next_search(sweep: Sweep) -> None:
    sweep.settings |= {"n_trials": 2, "n_jobs": 2}
    finish, signals = sweep.work, [InterruptedRunError(signal.SIGTERM)]

    def work(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
        if signals:
            raise signals.pop()
        return finish(overrides)

    sweep.work = work
    launch = sweep._launch

    def elsewhere(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number in range(first, first + len(overrides)):
            sweep.directory.attempt(number).update(sweeper="another process")
        launch(overrides, first)

    sweep._launch = elsewhere  # type: ignore[method-assign]
    states = [trial.state for trial in sweep.run(RATE).trials]
    assert states == [TrialState.RUNNING, TrialState.COMPLETE]
    states = [trial.state for trial in sweep.run(RATE).trials]
    assert states == [TrialState.COMPLETE] * 2
    first, _, again = (file.read() for file in sweep.directory.attempts())
    assert (first.run_dir, first.overrides) == (again.run_dir, again.overrides)


def test_a_search_whose_launcher_starts_nothing_is_gone_on_with(sweep: Sweep) -> None:
    def nothing(overrides: Sequence[Sequence[str]], first: int) -> None:
        raise OSError("no sbatch")

    launch, sweep._launch = sweep._launch, nothing  # type: ignore[method-assign]
    with pytest.raises(SweepError, match="the launcher started no trial"):
        sweep.run(RATE)
    sweep._launch = launch  # type: ignore[method-assign]
    assert [trial.state for trial in sweep.run(RATE).trials] == [TrialState.COMPLETE] * 4


def test_a_trial_whose_process_died_before_it_was_begun_is_replaced(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 1
    sweep.study().ask({}).set_user_attr(SWEEPER, "elsewhere_1")
    (sweep.folder / "processes").mkdir()
    (sweep.folder / "processes" / "elsewhere_1.lock").touch()
    states = [trial.state for trial in sweep.run(RATE).trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_worker_that_outlived_its_search_is_waited_for(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 1
    study = sweep.study()
    trial = study.ask({})
    trial.set_user_attr(SWEEPER, "elsewhere_1")
    (number,) = sweep.directory.add([Attempt(0, 1, (), {}, status=TrialStatus.RUNNING)])
    file = sweep.directory.attempt(number)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        file.update(status=TrialStatus.FINISHED, metrics={"loss": 0.125})
        file.lock.release()

    file.lock.acquire()
    sweep.run(RATE, say=say)
    assert said == ["trial 0 is still under way since before; waiting for that"]
    assert [each.value for each in study.trials] == [0.125]
    assert sweep.batches == []


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


def test_a_constraint_that_nobody_can_check_is_violated(sweep: Sweep) -> None:
    sweep.settings |= {
        "constraints": {"validation/los": {"max": 0.5}, "validation/loss": {"max": 2.0}},
        "n_trials": 1,
    }
    (trial,) = sweep.run(RATE).trials
    assert trial.state is TrialState.COMPLETE
    assert trial.constraints["validation/los"] == float("inf")
    assert trial.constraints["validation/loss"] <= 0.0


def test_a_constraint_that_raises_ends_the_search_and_is_asked_again_when_mended(
    sweep: Sweep,
) -> None:
    target = {"_target_": "tests.tiny.spaces.accurate", "least": 0.5}
    sweep.settings |= {"constraints": {"accurate": target}, "n_trials": 1}
    with pytest.raises(ConfigError, match="accurate gives no number"):
        sweep.run(RATE)
    sweep.settings["constraints"] = {"accurate": {**target, "_target_": "tests.tiny.spaces.low"}}
    (trial,) = sweep.run(RATE).trials
    assert trial.state is TrialState.COMPLETE
    assert trial.constraints["accurate"] == float(str(trial.value)) - 0.5
    assert sweep.batches == [1]


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


@pytest.mark.parametrize("custom", [misspelt, raising])
def test_a_mistake_of_a_custom_space_ends_the_search(sweep: Sweep, custom: Any) -> None:
    with pytest.raises((ConfigError, ZeroDivisionError), match=r"optimizer\.learning_rat|zero"):
        sweep.run(custom=custom)
    (trial,) = sweep.study().trials
    assert trial.state is TrialState.FAIL
    assert sweep.batches == []


def test_a_trial_of_which_the_sampler_fails_is_given_up(sweep: Sweep) -> None:
    sweep.settings["sampler"] = {
        "_target_": "optuna.samplers.GridSampler",
        "search_space": {"seed": [1, 2]},
    }
    with pytest.raises(SweepError, match=r"Optuna draws no trial") as raised:
        sweep.run(RATE)
    assert "optimizer.learning_rate, is not found in the given grid" in str(raised.value)
    assert "hydra.sweeper.sampler" in str(raised.value)
    (trial,) = sweep.study().trials
    assert trial.state is TrialState.FAIL
    assert attempt_of(trial, OBJECTIVES).message == "it was not started"


class Ended(optuna.samplers.RandomSampler):
    """Ends the process while it draws."""

    def sample_independent(self, *arguments: Any) -> Any:
        raise Killed


def test_a_trial_whose_process_died_while_it_was_drawn_is_replaced(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.settings["n_trials"] = 1
    # What a process that is killed does not do any more.
    monkeypatch.setattr(Search, "_fail", lambda self, number: None)
    sampler = {"_target_": f"{__name__}.Ended"}
    given, sweep.settings["sampler"] = sweep.sweeper["sampler"], sampler
    with pytest.raises(Killed):
        sweep.run(RATE)
    (trial,) = sweep.study().trials
    assert trial.state is TrialState.RUNNING
    monkeypatch.undo()
    sweep.settings["sampler"] = given
    states = [trial.state for trial in sweep.run(RATE).trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_search_ends_where_its_sampler_has_nothing_more_to_try(sweep: Sweep) -> None:
    sweep.settings["sampler"] = {
        "_target_": "optuna.samplers.GridSampler",
        "search_space": {"optimizer.learning_rate": [0.25, 0.5]},
    }
    for _ in range(2):
        said: list[str] = []
        study = sweep.run(RATE, say=said.append)
        assert sorted(str(trial.value) for trial in study.trials) == ["0.25", "0.5"]
        assert said == ["the sampler has nothing more to try"]
    sweep.settings["n_trials"] = 2
    sweep.run(RATE, say=said.append)
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_stops_whatever_the_pruner(sweep: Sweep) -> None:
    sweep.settings["pruner"] = {"_target_": "optuna.pruners.HyperbandPruner"}
    sweep.settings["sampler"] = {"_target_": "optuna.samplers.BruteForceSampler"}
    study = sweep.run("optimizer.learning_rate=choice(0.25, 0.5)")
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
