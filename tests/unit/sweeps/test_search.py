"""Searches whose trials are functions of their overrides: killed, resumed, pruned and replaced."""

from __future__ import annotations

import functools
import io
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from filelock import FileLock
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext
from omegaconf import DictConfig
from optuna.trial import TrialState
from rich.console import Console

from runner.config.choices import Goal, Resume
from runner.config.composition import Compose
from runner.console import Screen
from runner.errors import ConfigError, InterruptedRunError, SweepError
from runner.sweeps import study as studies
from runner.sweeps.execution import Execution, Launch
from runner.sweeps.objectives import Objective
from runner.sweeps.optuna_sweeper import OptunaSweeper
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.study import OWNER, SearchStudy, open_storage, open_study
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.status import Status
from tests.support.configs import tiny
from tests.support.sweeping import FakeLauncher, Killed, Work

RATE = "optimizer.learning_rate=interval(0.25, 0.75)"
COMPLETE, FAIL, RUNNING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING
THRESHOLD = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}


def _rate(overrides: Sequence[str]) -> list[dict[str, float]]:
    return [{"loss": float(overrides[-1].removeprefix("optimizer.learning_rate="))}]


class Sweep:
    """A search in a folder, of which `run` is one command.

    `sweeper` is that of the last command, which has returned `trials` and has `printed`.
    """

    # Composing is most of a test's time.
    composed: ClassVar[dict[tuple[str, ...], DictConfig]] = {}

    def __init__(self, directory: SweepDirectory, compose: Compose) -> None:
        self.directory, self.compose = directory, compose
        self.work: Work = _rate
        self.settings: dict[str, Any] = {
            "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
            "pruner": {"_target_": "optuna.pruners.NopPruner"},
            "study_name": "s",
            "n_trials": 2,
            "n_jobs": 1,
        }
        self.launcher = FakeLauncher(directory, settings=self.settings)
        self.launch: Launch = self.launcher

    def _compose_once(self, overrides: Sequence[str]) -> DictConfig:
        key = tuple(
            override
            for override in overrides
            if not override.startswith("optimizer.learning_rate=0")
        )
        if key not in self.composed:
            self.composed[key] = self.compose(overrides)
        return self.composed[key]

    def run(self, *overrides: str, folder: str = "", resume: str = "auto") -> optuna.Study:
        """Returns the study; `folder` is another one than that of the search."""
        if folder:
            directory = SweepDirectory(self.directory.path.parent / folder)
            directory.path.mkdir(exist_ok=True)
            self.launch = FakeLauncher(directory, self.work, self.settings)
        else:
            directory, self.launcher.work = self.directory, self.work
        self.sweeper = sweeper = OptunaSweeper(**self.settings)
        printed = io.StringIO()
        sweeper.screen = Screen(Console(file=printed))
        loader = GlobalHydra.instance().config_loader()
        sweeper.setup(
            hydra_context=HydraContext(loader, Callbacks()),
            task_function=lambda config: None,
            config=HydraConfig.instance().cfg,  # type: ignore[arg-type]
        )
        sweeper.compose = self._compose_once  # type: ignore[method-assign]
        given = ["+experiment=tiny", *overrides]
        sweeper.points(OverridesParser.create(loader).parse_overrides(given))
        config = tiny(resume=Resume[resume])
        sweeper.objectives(config)
        point = ComposedPoint(Point((), {}), config, "")
        self.trials = sweeper.trials([point], Execution(directory, self.launch, 0), directory)
        self.printed = printed.getvalue()
        assert sweeper.study is not None
        return sweeper.study

    def states(self, *overrides: str) -> list[TrialState]:
        """Runs, and returns the state of each trial of the study."""
        return [trial.state for trial in self.run(*overrides).trials]

    def attempts(self, folder: str = "sweep") -> list[Attempt]:
        files = SweepDirectory(self.directory.path.parent / folder).attempts()
        return [file.read() for file in files]

    def study(self) -> SearchStudy:
        storage = open_storage(self.directory.path, None)
        objectives = [Objective("validation/loss", Goal.minimize)]
        return open_study(storage, "s", self.settings, objectives)

    def left_by(self, owner: str, attempt: Attempt | None = None) -> None:
        """Makes a trial that another process has asked for, and perhaps begun."""
        self.study().ask({}).set_user_attr(OWNER, owner)
        if attempt is not None:
            self.directory.add([attempt])


@pytest.fixture
def sweep(
    directory: SweepDirectory,
    compose: Compose,
    empty_study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Sweep:
    # Opening a database takes longer than a trial; tests of the study open theirs each time.
    monkeypatch.setattr(studies, "_database", functools.cache(studies._database))
    directory.path.mkdir()
    directory.stop_on_failure(False)
    shutil.copy(empty_study, directory.path)
    return Sweep(directory, compose)


@pytest.fixture
def shared(sweep: Sweep) -> Sweep:
    """A search in one of several folders that share a storage."""
    sweep.settings |= {"storage": f"sqlite:///{sweep.directory.path}/study.db", "study_name": None}
    return sweep


def test_trials_are_asked_for_run_and_recorded(sweep: Sweep) -> None:
    sweep.settings |= {"n_trials": 3, "n_jobs": 2}
    study = sweep.run(RATE)
    assert [trial.values for trial in study.trials] == [
        [trial.params["optimizer.learning_rate"]] for trial in study.trials
    ]
    assert study.trials[0].user_attrs["loss"] == study.trials[0].value
    # Several at once, and never too many.
    assert [len(batch) for batch in sweep.launcher.launched] == [2, 1]
    sweep.settings["n_trials"] = 4
    assert sweep.states(RATE) == [COMPLETE] * 4
    assert len(sweep.launcher.launched) == 3


def test_trials_that_were_not_started_or_whose_process_was_killed_are_resumed(
    sweep: Sweep,
) -> None:
    def nothing(overrides: Sequence[Sequence[str]], first: int) -> None:
        raise OSError("no sbatch")

    def dying(overrides: Sequence[str]) -> Any:
        if len(sweep.launcher.started) == 2:
            raise Killed
        return _rate(overrides)

    sweep.launch, sweep.work = nothing, dying
    with pytest.raises(SweepError, match=r"the launcher started no trial\n.*OSError: no sbatch"):
        sweep.run(RATE)
    sweep.launch = sweep.launcher
    with pytest.raises(Killed):
        sweep.run(RATE)
    first, second = sweep.study().trials
    assert (first.state, second.state) == (COMPLETE, RUNNING)
    study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [COMPLETE] * 2
    started = sweep.launcher.started
    assert started[2] == started[1]
    assert study.trials[1].params == second.params
    attempts = sweep.attempts()
    assert [attempt.trial for attempt in attempts] == [0, 0, 1, 1]
    assert attempts[3].run_dir == attempts[2].run_dir


def test_what_other_processes_left_is_recorded_left_alone_or_not_counted(sweep: Sweep) -> None:
    sweep.settings["n_trials"] = 3
    ended = Attempt(0, status=Status.FINISHED, metrics={"loss": 0.125})
    sweep.left_by("dead_1", ended)
    sweep.left_by("dead_2")  # Before it had begun.
    sweep.left_by("living_1", Attempt(2, status=Status.RUNNING))
    lock = sweep.directory.path / "processes" / "living_1.lock"
    lock.parent.mkdir()
    with FileLock(lock):
        study = sweep.run(RATE)
    assert [trial.state for trial in study.trials] == [COMPLETE, RUNNING, RUNNING, COMPLETE]
    assert [trial.trial for trial in sweep.trials] == [0, 3, 2]
    assert study.trials[0].value == 0.125
    assert len(sweep.launcher.started) == 1


def test_a_trial_that_was_interrupted_elsewhere_is_resumed_by_the_next_search(sweep: Sweep) -> None:
    sweep.settings |= {"n_trials": 2, "n_jobs": 2}
    signals = [InterruptedRunError(signal.SIGTERM)]

    def work(overrides: Sequence[str]) -> Any:
        if signals:
            raise signals.pop()
        return _rate(overrides)

    sweep.work = work

    def elsewhere(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number in range(first, first + len(overrides)):
            sweep.directory.attempt(number).update(sweeper="another process")
        sweep.launcher(overrides, first)

    sweep.launch = elsewhere
    assert sweep.states(RATE) == [RUNNING, COMPLETE]
    assert sweep.states(RATE) == [COMPLETE] * 2
    first, _, again = sweep.attempts()
    assert (first.run_dir, first.overrides) == (again.run_dir, again.overrides)


@pytest.mark.parametrize("stop", [True, False])
def test_a_trial_of_which_any_objective_is_nan_has_failed(sweep: Sweep, stop: bool) -> None:
    sweep.directory.stop_on_failure(stop)
    goals = {"validation/loss": "minimize", "validation/accuracy": "maximize"}
    sweep.settings["objectives"] = goals
    sweep.work = lambda overrides: [{"loss": 0.5, "accuracy": float("nan")}]
    assert sweep.states(RATE) == [FAIL] * (1 if stop else 2)
    first = sweep.trials[0]
    assert (first.status, first.message) == (Status.FAILED, "validation/accuracy is nan")
    assert sweep.sweeper.failures(sweep.trials) == sweep.trials


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

    sweep.work = work
    for _ in range(2):
        study = sweep.run("optimizer=choice(adam)")
    assert study.trials[0].state is TrialState.PRUNED
    assert study.trials[0].intermediate_values == {0: 0.5, 1: 2.0}
    attempts = sweep.attempts()
    assert [attempt.status.value for attempt in attempts] == [
        "PRUNED",
        "FAILED",
        "FINISHED",
        "FINISHED",
    ]
    assert attempts[0].message == "pruned at step 1"
    assert len({attempt.overrides for attempt in attempts}) == 1
    assert len({attempt.run_dir for attempt in attempts}) == 4


def test_an_error_that_shows_before_any_trial_has_ended_is_raised(sweep: Sweep) -> None:
    sweep.settings["sampler"] = {"_target_": "tests.samples.samplers.FailsLater", "after": 0}
    with pytest.raises(SweepError, match="draws no trial"):
        sweep.run(RATE)
    sweep.settings["sampler"]["after"] = 2
    sweep.run(RATE)
    assert "draws no trial" in str(sweep.sweeper.late_error)
    assert Status.FINISHED in [trial.status for trial in sweep.trials]


def test_failures_are_replaced_by_others(sweep: Sweep) -> None:
    left = [[{"loss": 0.5}]]
    sweep.work = lambda overrides: left.pop()
    sweep.run(RATE)
    assert [trial.trial for trial in sweep.sweeper.failures(sweep.trials)] == [1]
    assert "replaces trials that failed by others" in sweep.sweeper.rerun
    assert sweep.printed == ""
    sweep.work = _rate
    sweep.run(RATE)
    statuses = [trial.status for trial in sweep.trials]
    assert statuses == [Status.FINISHED, Status.FAILED, Status.FINISHED]
    # The seed of the sampler draws nothing twice.
    assert len({trial.values["optimizer.learning_rate"] for trial in sweep.trials}) == 3
    assert sweep.sweeper.failures(sweep.trials) == []
    assert sweep.printed == "1 of 2 trials have finished before\n"
    sweep.settings["n_trials"] = 1
    sweep.run(RATE)
    assert sweep.printed == "2 trials have finished before, and n_trials is 1\n"


def test_trials_from_another_folder_are_shown_and_not_tried_again(shared: Sweep) -> None:
    losses = [0.5, 0.25]
    shared.work = lambda overrides: [{"loss": losses.pop(0)}]
    shared.run(RATE, folder="one")
    first = shared.trials
    shared.run(RATE, folder="other")
    assert shared.attempts("other") == []
    assert [trial.objective for trial in shared.trials] == [0.5, 0.25]
    assert [trial.values for trial in shared.trials] == [trial.values for trial in first]
    assert [trial.curve for trial in shared.trials] == [((0, 0.5),), ((0, 0.25),)]
    best = shared.sweeper.best(shared.trials, shared.sweeper.objectives(tiny()))
    assert [trial.trial for trial in best] == [1]
    shared.settings["n_trials"] = 3
    with pytest.raises(SweepError, match="draws no trial") as raised:
        shared.run("optimizer.learning_rate=1,2", folder="other")
    assert "give hydra.sweeper.study_name another name" in str(raised.value)


def test_a_search_that_starts_anew_has_a_study_of_its_own(shared: Sweep) -> None:
    shared.settings["n_trials"] = 1
    shared.run(RATE, folder="001")
    shared.run(RATE, folder="002", resume="never")
    assert len(shared.attempts("002")) == 1
    shared.run(RATE, folder="002")
    assert len(shared.attempts("002")) == len(shared.trials) == 1


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
        assert sweep.printed.endswith("the sampler has nothing more to try\n")
    sweep.settings["n_trials"] = 2
    sweep.run("optimizer.learning_rate=choice(0.25, 0.5)")
    assert sweep.printed == "2 of 2 trials have finished before\n"
    other = {"_target_": "optuna.samplers.RandomSampler"}
    sweep.settings |= {"sampler": other, "n_trials": 3}
    assert sweep.states("optimizer.learning_rate=choice(0.25, 0.5)") == [COMPLETE] * 3


def test_settings_that_are_built_have_a_target() -> None:
    wrong: dict[str, Any] = {
        "n_trials": 0,
        "n_jobs": True,
        "sampler": "tpe",
        "pruner": {},
        "storage": {"url": "a"},
    }
    with pytest.raises(
        ConfigError, match=r"sampler is 'tpe'\n.*it must be a mapping with a `_target_`"
    ) as raised:
        OptunaSweeper(**wrong).points([])
    names = [problem.state.split()[0].rpartition(".")[2] for problem in raised.value.problems]
    assert names == list(wrong)


def test_mistakes_in_settings_are_reported_together() -> None:
    sweep = OptunaSweeper(
        sampler={"_target_": "optuna.samplers.Nosuch"},
        pruner={"_target_": "optuna.pruners.NopPruner", "patience": 1},
        objectives={"validation/los": "minimize"},
        storage="nosuch://host/db",
    )
    with pytest.raises(ConfigError) as raised:
        sweep.objectives(tiny())
    assert [problem.state.partition(" is ")[0] for problem in raised.value.problems] == [
        "hydra.sweeper.objectives names 'validation/los'",
        "hydra.sweeper.sampler._target_",
        "hydra.sweeper.pruner.patience",
        "hydra.sweeper.storage cannot be opened",
    ]


def test_another_storage_is_another_sweep_and_more_trials_are_not() -> None:
    storages = (None, "sqlite:///a", "sqlite:///b")
    identities = [OptunaSweeper(storage=storage).identity() for storage in storages]
    assert len(set(identities)) == 3
    assert (
        OptunaSweeper(n_trials=1).identity()
        == OptunaSweeper(n_trials=2).identity()
        == identities[0]
    )
