"""The search's sweeper: its settings, and what it reports of its study at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext

from hydra_plugins.runner_sweepers.optuna import OptunaSweeper
from runner.config.choices import Resume
from runner.errors import ConfigError
from runner.sweeps.execution import Execution
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.sweep_directory import Attempt, SweepDirectory, SweepIdentity, open_sweep
from runner.system.status import Status
from tests.tiny.composing import composing
from tests.tiny.configs import tiny
from tests.tiny.sweeping import FakeLauncher

Search = Callable[..., tuple[OptunaSweeper, list[Attempt]]]
OVERRIDES = ["+experiment=tiny", "optimizer.learning_rate=interval(0.25, 0.75)"]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    """Runs a search of two trials, in one of several folders that share a storage."""
    storage = f"sqlite:///{tmp_path}/shared.db"

    def run(
        folder: str,
        resume: str = "auto",
        metrics: Sequence[Mapping[str, float] | None] = (),
        on_failure: bool = False,
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
            config=compose("config", [], return_hydra_config=True),
        )
        sweep.points(OverridesParser.create().parse_overrides(list(overrides)))
        config = tiny(resume=Resume[resume])
        sweep.objectives(config)
        directory = open_sweep(tmp_path / folder, SweepIdentity(tuple(overrides)), resume)
        directory.stop_on_failure(on_failure)
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

    with composing(tmp_path / "conf"):
        yield run


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
    search("one")
    search("one", "never")
    assert _attempts(tmp_path / "one" / "002") == 2
    _, trials = search("one")
    assert _attempts(tmp_path / "one" / "002") == len(trials) == 2
    search("one", "never")
    assert _attempts(tmp_path / "one" / "003") == 2


def test_failures_are_replaced(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, trials = search("one", metrics=[{"loss": 0.5}, None])
    assert [each.trial for each in sweep.failures(trials)] == [1]
    assert "others in place of those that failed" in sweep.again
    assert "finished before" not in capsys.readouterr().out
    sweep, trials = search("one")
    assert [each.status for each in trials] == [Status.FINISHED, Status.FAILED, Status.FINISHED]
    assert sweep.failures(trials) == []
    assert "1 of 2 trials have finished before" in capsys.readouterr().out
    search("one", n_trials=1)
    assert "2 trials have finished before, and n_trials is 1\n" in capsys.readouterr().out


@pytest.mark.parametrize("on_failure", [True, False])
def test_a_trial_of_which_any_objective_is_nan_has_failed(search: Search, on_failure: bool) -> None:
    nan = {"loss": 0.5, "accuracy": float("nan")}
    objectives = {"validation/loss": "minimize", "validation/accuracy": "maximize"}
    sweep, trials = search("one", metrics=[nan, nan], objectives=objectives, on_failure=on_failure)
    assert [each.status for each in trials] == [Status.FAILED] * (1 if on_failure else 2)
    assert trials[0].message == "validation/accuracy is nan"
    assert sweep.failures(trials) == trials


def test_a_named_study_of_other_values_is_refused(search: Search, tmp_path: Path) -> None:
    search("one", study_name="mine")
    with pytest.raises(ConfigError, match="'mine' exists, with other values of optimizer"):
        search("other", study_name="mine", overrides=["optimizer.learning_rate=1,2"])
    assert _attempts(tmp_path / "other" / "001") == 0


def test_a_trial_that_violates_a_constraint_is_known(search: Search) -> None:
    bounds = {"validation/loss": {"max": 0.5}}
    sweep, trials = search("one", metrics=[{"loss": 0.75}, None], constraints=bounds)
    found = [(each.status, each.infeasible) for each in trials]
    assert found == [(Status.FINISHED, True), (Status.FAILED, False)]
    assert sweep.best(trials, sweep.objectives(tiny())) == []
    _, trials = search("one", constraints=bounds)
    assert [each.infeasible for each in trials] == [True, False, False]


def test_a_mistake_that_shows_late_leaves_what_is_done_to_be_reported(search: Search) -> None:
    target = {"_target_": "tests.tiny.spaces.divided"}
    sweep, trials = search("one", metrics=[{"loss": 0.5}], constraints={"mine": target})
    assert isinstance(sweep.cut_short, ConfigError)
    assert "divided gives no number" in str(sweep.cut_short)
    assert [each.status for each in trials] == [Status.FINISHED]
    assert sweep.failures(trials) == []


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


def test_a_custom_space_may_draw_any_key() -> None:
    points = [Point((), {"seed": "1"})]
    assert OptunaSweeper().swept(points) == {"seed"}
    assert OptunaSweeper(custom_search_space={"_target_": "f"}).swept(points) is None


def test_another_storage_is_another_sweep_and_more_trials_are_not() -> None:
    storages = (None, "sqlite:///a", "sqlite:///b")
    found = [OptunaSweeper(storage=each).identity() for each in storages]
    assert len(set(found)) == 3
    assert OptunaSweeper(n_trials=1).identity() == OptunaSweeper(n_trials=2).identity() == found[0]
