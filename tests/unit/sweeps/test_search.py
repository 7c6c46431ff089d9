"""Searches whose trials are functions of their overrides: killed, resumed, pruned and replaced."""

from __future__ import annotations

import io
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from optuna.trial import TrialState
from rich.console import Console

from runner.config.choices import Goal
from runner.config.composition import Compose
from runner.console import Screen
from runner.errors import ConfigError, InterruptedRunError, SweepError
from runner.sweeps.execution import Execution
from runner.sweeps.objectives import Objective
from runner.sweeps.search import Search
from runner.sweeps.search_space import SearchSpace, search_space
from runner.sweeps.study import OWNER, SearchStudy, open_storage, open_study
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.status import Status
from tests.tiny.sweeping import FakeLauncher, Killed

OBJECTIVES = [Objective("validation/loss", Goal.minimize)]
RATE = "optimizer.learning_rate=interval(0.25, 0.75)"
COMPLETE, FAIL, RUNNING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING
THRESHOLD = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}


def _rate(overrides: Sequence[str]) -> list[dict[str, float]]:
    return [{"loss": float(overrides[-1].removeprefix("optimizer.learning_rate="))}]


class Sweep:
    """A search in a folder, of which `run` is one command that leaves what it `printed`."""

    def __init__(self, directory: SweepDirectory, compose: Compose) -> None:
        self.directory = directory
        self.launcher = FakeLauncher(directory, _rate)
        self.printed = ""
        self.settings: dict[str, Any] = {
            "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
            "pruner": {"_target_": "optuna.pruners.NopPruner"},
            "n_trials": 2,
            "n_jobs": 1,
        }
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._compose = compose

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Composes once for all learning rates that are drawn."""
        key = tuple(each for each in overrides if not each.startswith("optimizer.learning_rate="))
        if key not in self._composed:
            self._composed[key] = self._compose(overrides)
        return self._composed[key]

    def study(self, *overrides: str) -> tuple[SearchStudy, SearchSpace]:
        parsed = OverridesParser.create().parse_overrides(["+experiment=tiny", *overrides])
        space = search_space(parsed)
        storage = open_storage(self.directory.path, None)
        return open_study(storage, "s", self.settings, OBJECTIVES, space), space

    def run(self, *overrides: str) -> SearchStudy:
        study, space = self.study(*overrides)
        printed = io.StringIO()
        screen = Screen(Console(file=printed))
        search = Search(study, space, self.settings, OBJECTIVES, self.directory, screen)
        try:
            search.run(Execution(self.directory, self.launcher, retries=0), self.compose)
        finally:
            self.printed = printed.getvalue()
        return study

    def states(self, *overrides: str) -> list[TrialState]:
        """Runs, and returns the state of each trial of the study."""
        return [trial.state for trial in self.run(*overrides).trials]

    def attempts(self) -> list[Attempt]:
        return [file.read() for file in self.directory.attempts()]

    def left_by(self, owner: str, attempt: Attempt | None = None) -> None:
        """Makes a trial that another process has asked for, and perhaps begun."""
        study, _ = self.study()
        study.ask({}).set_user_attr(OWNER, owner)
        if attempt is not None:
            self.directory.add([attempt])


@pytest.fixture
def sweep(directory: SweepDirectory, compose: Compose, empty_study: Path) -> Sweep:
    directory.path.mkdir()
    shutil.copy(empty_study, directory.path)
    return Sweep(directory, compose)


def test_trials_are_asked_for_run_and_recorded(sweep: Sweep) -> None:
    sweep.settings |= {"n_trials": 3, "n_jobs": 2}
    study = sweep.run(RATE)
    assert [trial.values for trial in study.trials] == [
        [trial.params["optimizer.learning_rate"]] for trial in study.trials
    ]
    assert study.trials[0].user_attrs["loss"] == study.trials[0].value
    # Several at once, and never too many.
    assert [len(each) for each in sweep.launcher.launched] == [2, 1]
    sweep.settings["n_trials"] = 4
    assert sweep.states(RATE) == [COMPLETE] * 4
    assert len(sweep.launcher.launched) == 3


def test_trials_of_a_process_that_was_killed_are_resumed(sweep: Sweep) -> None:
    def dying(overrides: Sequence[str]) -> Any:
        if len(sweep.launcher.started) == 2:
            raise Killed
        return _rate(overrides)

    sweep.launcher.work = dying
    with pytest.raises(Killed):
        sweep.run(RATE)
    first, second = sweep.study()[0].trials
    assert (first.state, second.state) == (COMPLETE, RUNNING)
    study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [COMPLETE] * 2
    started = sweep.launcher.started
    assert started[2] == started[1]
    assert study.trials[1].params == second.params
    attempts = sweep.attempts()
    assert (attempts[2].trial, attempts[2].run_dir) == (1, attempts[1].run_dir)


def test_what_other_processes_left_is_recorded_left_alone_or_not_counted(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 3
    ended = Attempt(0, 1, (), {}, status=Status.FINISHED, metrics={"loss": 0.125})
    sweep.left_by("dead_1", ended)
    sweep.left_by("dead_2")  # Before it had begun.
    sweep.left_by("living_1", Attempt(2, 1, (), {}, status=Status.RUNNING))
    lock = sweep.directory.path / "processes" / "living_1.lock"
    lock.parent.mkdir()
    with FileLock(lock):
        study = sweep.run(RATE)
    assert [each.state for each in study.trials] == [COMPLETE, RUNNING, RUNNING, COMPLETE]
    assert [each.trial for each in study.ended()] == [0, 3]
    assert study.trials[0].value == 0.125
    assert len(sweep.launcher.started) == 1


def test_a_process_that_outlived_its_search_is_waited_for(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.settings["n_trials"] = 1
    sweep.left_by("elsewhere_1", Attempt(0, 1, (), {}, status=Status.RUNNING))
    file = sweep.directory.attempt(0)
    file.lock.acquire()

    def line(screen: Screen, text: str) -> None:
        assert text == "trial 0 is still running since before; waiting for it"
        file.update(status=Status.FINISHED, metrics={"loss": 0.125})
        file.lock.release()

    monkeypatch.setattr(Screen, "line", line)
    assert [each.value for each in sweep.run(RATE).trials] == [0.125]
    assert sweep.launcher.started == []


def test_a_trial_that_was_interrupted_elsewhere_is_resumed_by_the_next_search(
    sweep: Sweep,
) -> None:
    sweep.settings |= {"n_trials": 2, "n_jobs": 2}
    signals = [InterruptedRunError(signal.SIGTERM)]

    def work(overrides: Sequence[str]) -> Any:
        if signals:
            raise signals.pop()
        return _rate(overrides)

    sweep.launcher.work, launcher = work, sweep.launcher

    def elsewhere(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number in range(first, first + len(overrides)):
            sweep.directory.attempt(number).update(sweeper="another process")
        launcher(overrides, first)

    sweep.launcher = elsewhere  # type: ignore[assignment]
    assert sweep.states(RATE) == [RUNNING, COMPLETE]
    assert sweep.states(RATE) == [COMPLETE] * 2
    first, _, again = sweep.attempts()
    assert (first.run_dir, first.overrides) == (again.run_dir, again.overrides)


def test_a_search_whose_launcher_starts_nothing_is_resumed(sweep: Sweep) -> None:
    def nothing(overrides: Sequence[Sequence[str]], first: int) -> None:
        raise OSError("no sbatch")

    launcher, sweep.launcher = sweep.launcher, nothing  # type: ignore[assignment]
    with pytest.raises(SweepError, match="the launcher started no trial"):
        sweep.run(RATE)
    sweep.launcher = launcher
    assert sweep.states(RATE) == [COMPLETE] * 2


def test_a_failure_stops_the_search_on_request(sweep: Sweep) -> None:
    sweep.directory.stop_on_failure(True)
    sweep.launcher.work = lambda overrides: [{"loss": float("nan")}]
    assert sweep.states(RATE) == [FAIL]


def test_hopeless_trials_are_pruned_and_those_with_the_same_values_have_a_run_each(
    sweep: Sweep,
) -> None:
    sweep.settings |= {"pruner": THRESHOLD, "n_trials": 3}
    left: list[Any] = [[0.5, 2.0, 0.0], None, [0.5], [0.5]]

    def work(overrides: Sequence[str]) -> Any:
        losses = left.pop(0)
        if losses is None:
            raise ValueError("no")
        return [{"loss": loss} for loss in losses]

    sweep.launcher.work = work
    for _ in range(2):
        study = sweep.run("optimizer=choice(adam)")
    assert study.trials[0].state is TrialState.PRUNED
    assert study.trials[0].intermediate_values == {0: 0.5, 1: 2.0}
    attempts = sweep.attempts()
    assert [each.status.value for each in attempts] == ["PRUNED", "FAILED", "FINISHED", "FINISHED"]
    assert attempts[0].message == "pruned at step 1"
    assert len({each.overrides for each in attempts}) == 1
    assert len({each.run_dir for each in attempts}) == 4


def test_a_constraint_that_raises_ends_the_search_and_is_asked_again_when_fixed(
    sweep: Sweep,
) -> None:
    target = {"_target_": "tests.tiny.spaces.accurate", "least": 0.5}
    sweep.settings |= {"constraints": {"accurate": target}, "n_trials": 1}
    with pytest.raises(ConfigError, match="accurate gives no number"):
        sweep.run(RATE)
    sweep.settings["constraints"] = {"accurate": {**target, "_target_": "tests.tiny.spaces.low"}}
    (trial,) = sweep.run(RATE).trials
    assert trial.state is COMPLETE
    assert trial.constraints["accurate"] == float(str(trial.value)) - 0.5
    assert len(sweep.launcher.started) == 1


def test_a_sampler_that_fails_ends_the_search(sweep: Sweep) -> None:
    grid = {"_target_": "optuna.samplers.GridSampler", "search_space": {"seed": [1, 2]}}
    given, sweep.settings["sampler"] = sweep.settings["sampler"], grid
    with pytest.raises(SweepError, match="GridSampler, which draws no trial") as raised:
        sweep.run(RATE)
    assert "optimizer.learning_rate, is not found in the given grid" in str(raised.value)
    sweep.settings |= {"sampler": given, "n_trials": 1}
    # What it left neither counts nor is shown.
    study = sweep.run(RATE)
    assert [each.status for each in study.ended()] == [Status.FINISHED]


@pytest.mark.parametrize(
    ("sampler", "arguments", "pruner"),
    [
        ("Grid", {"search_space": {"optimizer.learning_rate": ["0.25", "0.5"]}}, "Nop"),
        ("BruteForce", {}, "Hyperband"),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_search_ends_where_its_sampler_has_nothing_more_to_try(
    sweep: Sweep, sampler: str, arguments: dict[str, Any], pruner: str
) -> None:
    sweep.settings |= {
        "sampler": {"_target_": f"optuna.samplers.{sampler}Sampler", **arguments},
        "pruner": {"_target_": f"optuna.pruners.{pruner}Pruner"},
        "n_trials": 3,
    }
    for _ in range(2):
        study = sweep.run("optimizer.learning_rate=choice(0.25, 0.5)")
        assert sorted(str(trial.value) for trial in study.trials) == ["0.25", "0.5"]
        assert sweep.printed == "the sampler has nothing more to try\n"
    sweep.settings["n_trials"] = 2
    sweep.run("optimizer.learning_rate=choice(0.25, 0.5)")
    assert sweep.printed == ""
