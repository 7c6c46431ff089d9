"""The search's sweeper: its settings, and what it reports of its study at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext

from hydra_plugins.runner_sweepers.optuna import OptunaSweeper
from runner.config.choices import Resume
from runner.config.composition import Compose
from runner.errors import ConfigError
from runner.sweeps.execution import Execution
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.sweep_directory import Attempt, SweepDirectory, SweepIdentity, open_sweep
from runner.system.status import Status
from tests.tiny.configs import tiny
from tests.tiny.sweeping import FakeLauncher

Search = Callable[..., tuple[OptunaSweeper, list[Attempt]]]
OVERRIDES = ["+experiment=tiny", "optimizer.learning_rate=interval(0.25, 0.75)"]


@pytest.fixture
def search(tmp_path: Path, compose: Compose, empty_study: Path) -> Search:
    """Runs a search of two trials, in one of several folders that share a storage."""
    storage = f"sqlite:///{shutil.copy(empty_study, tmp_path / 'shared.db')}"
    running = hydra.compose("config", [], return_hydra_config=True)

    def run(
        folder: str,
        resume: str = "auto",
        metrics: Sequence[Mapping[str, float] | None] = (),
        overrides: Sequence[str] = OVERRIDES,
        **settings: Any,
    ) -> tuple[OptunaSweeper, list[Attempt]]:
        sweep = OptunaSweeper(
            **{
                "n_trials": 2,
                "n_jobs": 1,
                "storage": storage,
                "sampler": {"_target_": "optuna.samplers.RandomSampler"},
                "pruner": {"_target_": "optuna.pruners.NopPruner"},
                **settings,
            }
        )
        sweep.setup(
            hydra_context=HydraContext(GlobalHydra.instance().config_loader(), Callbacks()),
            task_function=lambda config: None,
            config=running,
        )
        sweep.points(OverridesParser.create().parse_overrides(list(overrides)))
        config = tiny(resume=Resume[resume])
        sweep.objectives(config)
        directory = open_sweep(tmp_path / folder, SweepIdentity(tuple(overrides)), resume)
        directory.stop_on_failure(False)
        left = list(metrics)

        def work(overrides: Sequence[str]) -> Any:
            found = left.pop(0) if left else {"loss": 0.25, "accuracy": 0.5}
            if found is None:
                raise ValueError("no")
            return [found]

        execution = Execution(directory, FakeLauncher(directory, work, storage), retries=0)
        try:
            trials = sweep.trials([ComposedPoint(Point((), {}), config, "")], execution, directory)
        finally:
            directory.lock.release()
        return sweep, trials

    return run


def _attempts(path: Path) -> int:
    return len(SweepDirectory(path).attempts())


def test_trials_from_another_folder_are_shown_and_not_tried_again(
    search: Search, tmp_path: Path
) -> None:
    _, first = search("one", metrics=[{"loss": 0.5}, {"loss": 0.25}])
    sweep, trials = search("other")
    assert _attempts(tmp_path / "other" / "001") == 0
    assert [each.objective for each in trials] == [each.objective for each in first] == [0.5, 0.25]
    assert [each.values for each in trials] == [each.values for each in first]
    assert [each.trial for each in sweep.best(trials, sweep.objectives(tiny()))] == [1]


def test_a_search_that_starts_anew_has_a_study_of_its_own(search: Search, tmp_path: Path) -> None:
    search("one", n_trials=1)
    search("one", "never", n_trials=1)
    assert _attempts(tmp_path / "one" / "002") == 1
    _, trials = search("one", n_trials=1)
    assert _attempts(tmp_path / "one" / "002") == len(trials) == 1


def test_failures_are_replaced_by_others(
    search: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded = {"_target_": "optuna.samplers.RandomSampler", "seed": 1}
    sweep, trials = search("one", metrics=[{"loss": 0.5}, None], sampler=seeded)
    assert [each.trial for each in sweep.failures(trials)] == [1]
    assert "others in place of those that failed" in sweep.again
    assert "finished before" not in capsys.readouterr().out
    sweep, trials = search("one", sampler=seeded)
    assert [each.status for each in trials] == [Status.FINISHED, Status.FAILED, Status.FINISHED]
    # The seed of the sampler draws nothing twice.
    assert len({each.values["optimizer.learning_rate"] for each in trials}) == 3
    assert sweep.failures(trials) == []
    assert "1 of 2 trials have finished before" in capsys.readouterr().out
    search("one", n_trials=1, sampler=seeded)
    assert "2 trials have finished before, and n_trials is 1\n" in capsys.readouterr().out


def test_a_trial_of_which_any_objective_is_nan_has_failed(search: Search) -> None:
    nan = {"loss": 0.5, "accuracy": float("nan")}
    objectives = {"validation/loss": "minimize", "validation/accuracy": "maximize"}
    sweep, (trial,) = search("one", metrics=[nan], objectives=objectives, n_trials=1)
    assert (trial.status, trial.message) == (Status.FAILED, "validation/accuracy is nan")
    assert sweep.failures([trial]) == [trial]


def test_a_named_study_of_other_values_is_refused(search: Search, tmp_path: Path) -> None:
    search("one", study_name="mine", n_trials=1)
    with pytest.raises(ConfigError, match="'mine' exists, with other values of optimizer"):
        search("other", study_name="mine", overrides=["optimizer.learning_rate=1,2"])
    assert _attempts(tmp_path / "other" / "001") == 0


def test_a_trial_that_violates_a_constraint_is_known(search: Search) -> None:
    bounds = {"validation/loss": {"max": 0.5}}
    sweep, trials = search("one", metrics=[{"loss": 0.75}, None], constraints=bounds)
    found = [(each.status, each.infeasible) for each in trials]
    assert found == [(Status.FINISHED, True), (Status.FAILED, False)]
    assert sweep.best(trials, sweep.objectives(tiny())) == []


def test_a_mistake_that_shows_before_anything_is_done_is_raised(search: Search) -> None:
    with pytest.raises(ConfigError, match=r"learning_rat\b"):
        search(
            "one",
            overrides=["+experiment=tiny"],
            custom_search_space={"_target_": "tests.tiny.spaces.misspelt_later"},
        )


def test_settings_that_are_built_have_a_target() -> None:
    wrong: dict[str, Any] = {
        "n_trials": 0,
        "n_jobs": True,
        "sampler": "tpe",
        "pruner": {},
        "custom_search_space": "f",
        "storage": {"url": "a"},
    }
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.sampler has no `_target_`") as raised:
        OptunaSweeper(**wrong).points([])
    names = [each.state.split()[0].rpartition(".")[2] for each in raised.value.problems]
    assert names == list(wrong)


def test_mistakes_in_settings_are_reported_together() -> None:
    sweep = OptunaSweeper(
        sampler={"_target_": "optuna.samplers.Nosuch"},
        pruner={"_target_": "optuna.pruners.NopPruner", "patience": 1},
        objectives={"validation/los": "minimize"},
        constraints={"validation/accurac": {"max": 0.5}},
        storage="nosuch://host/db",
    )
    with pytest.raises(ConfigError) as raised:
        sweep.objectives(tiny())
    assert [each.state.partition(" is ")[0] for each in raised.value.problems] == [
        "hydra.sweeper.objectives names 'validation/los'",
        "hydra.sweeper.sampler._target_",
        "hydra.sweeper.pruner.patience",
        "hydra.sweeper.constraints names 'validation/accurac'",
        "hydra.sweeper.storage cannot be opened",
    ]


def test_another_storage_is_another_sweep_and_more_trials_are_not() -> None:
    storages = (None, "sqlite:///a", "sqlite:///b")
    found = [OptunaSweeper(storage=each).identity() for each in storages]
    assert len(set(found)) == 3
    assert OptunaSweeper(n_trials=1).identity() == OptunaSweeper(n_trials=2).identity() == found[0]
    # A custom space may draw any key.
    assert OptunaSweeper().swept([Point((), {"seed": "1"})]) == {"seed"}
    assert OptunaSweeper(custom_search_space={"_target_": "f"}).swept([]) is None
