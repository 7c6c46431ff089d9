"""The search's part of a sweep: its study, and what it shows of that at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext

from runner.config.choices import Resume
from runner.errors import ConfigError, SweepError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.execution import Execution
from runner.sweeps.job import Job, carry_out
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.search_sweep import SearchSweep
from runner.sweeps.sweep_directory import SweepDirectory, SweepIdentity, open_sweep
from runner.sweeps.trial import Trial
from tests.tiny.composing import composing
from tests.tiny.configs import tiny

Search = Callable[..., tuple[SearchSweep, list[Attempt]]]
OVERRIDES = ["+experiment=tiny", "optimizer.learning_rate=interval(0.25, 0.75)"]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    """Runs a search of two trials, each a function of its number, in one of several folders."""
    storage = f"sqlite:///{tmp_path}/shared.db"

    def run(
        folder: str,
        resume: str = "auto",
        fails: Sequence[int] = (),
        metrics: Mapping[str, float] | None = None,
        on_failure: bool = False,
        overrides: Sequence[str] = OVERRIDES,
        **settings: Any,
    ) -> tuple[SearchSweep, list[Attempt]]:
        sweep = SearchSweep(
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

        def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
            job = Job(directory, directory.attempt(first))

            def train(trial: Trial) -> float:
                if trial.number in fails:
                    raise ValueError("no")
                return trial.number / 4

            with contextlib.suppress(SweepError):
                carry_out(replace(job, storage=storage), train)
                if metrics is not None:
                    job.file.update(metrics=metrics)

        try:
            execution = Execution(directory, launch, retries=0)
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
    _, first = search("one")
    sweep, trials = search("other")
    assert _attempts(tmp_path / "other" / "001") == 0
    assert [each.objective for each in trials] == [each.objective for each in first] == [0.0, 0.25]
    assert [each.values for each in trials] == [each.values for each in first]
    assert [each.trial for each in sweep.best(trials, sweep.objectives(tiny()))] == [0]


def test_a_search_that_begins_anew_has_a_study_of_its_own(search: Search, tmp_path: Path) -> None:
    search("one")
    search("one", "never")
    assert _attempts(tmp_path / "one" / "002") == 2
    _, trials = search("one")
    assert _attempts(tmp_path / "one" / "002") == len(trials) == 2
    search("one", "never")
    assert _attempts(tmp_path / "one" / "003") == 2


def test_failures_are_mended_by_others(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, trials = search("one", fails=[1])
    assert [each.trial for each in sweep.unmended(trials)] == [1]
    assert "others in place of those that failed" in sweep.again
    assert "finished before" not in capsys.readouterr().out
    sweep, trials = search("one")
    assert [each.status for each in trials] == [
        TrialStatus.FINISHED,
        TrialStatus.FAILED,
        TrialStatus.FINISHED,
    ]
    assert sweep.unmended(trials) == []
    assert "1 of 2 trials have finished before" in capsys.readouterr().out
    search("one", n_trials=1)
    assert "2 trials have finished before, and n_trials is 1\n" in capsys.readouterr().out


def test_a_trial_of_which_any_objective_is_nan_has_failed(search: Search, tmp_path: Path) -> None:
    sweep, trials = search(
        "one",
        metrics={"loss": 0.5, "accuracy": float("nan")},
        objectives={"validation/loss": "minimize", "validation/accuracy": "maximize"},
    )
    assert [each.status for each in trials] == [TrialStatus.FAILED] * 2
    assert trials[0].message == "validation/accuracy is nan"
    assert sweep.unmended(trials) == trials


def test_a_trial_of_which_an_objective_is_nan_stops_the_sweep_on_request(
    search: Search, tmp_path: Path
) -> None:
    _, trials = search("one", metrics={"loss": float("nan")}, on_failure=True)
    assert [each.status for each in trials] == [TrialStatus.FAILED]


def test_a_named_study_of_other_values_is_refused_before_anything_is_made(
    search: Search, tmp_path: Path
) -> None:
    search("one", study_name="mine")
    study = optuna.load_study(study_name="mine", storage=f"sqlite:///{tmp_path}/shared.db")
    (name,) = study.trials[0].params
    with pytest.raises(ConfigError, match=f"'mine' exists, with other values of {name}"):
        search("other", study_name="mine", overrides=["optimizer.learning_rate=1,2"])
    assert not (tmp_path / "other").exists()
    assert len(study.trials) == 2


def test_a_trial_that_violates_a_constraint_is_known(search: Search) -> None:
    sweep, trials = search("one", fails=[1], constraints={"validation/loss": {"max": 0.5}})
    found = [(each.status, each.infeasible) for each in trials]
    assert found == [(TrialStatus.FINISHED, True), (TrialStatus.FAILED, False)]
    assert sweep.best(trials, sweep.objectives(tiny())) == []
    _, trials = search("one", metrics={"loss": 0.25}, constraints={"validation/loss": {"max": 0.5}})
    assert [each.infeasible for each in trials] == [True, False, False]


def test_a_mistake_that_shows_late_leaves_what_is_done_to_be_told(search: Search) -> None:
    target = {"_target_": "tests.tiny.spaces.divided"}
    sweep, trials = search("one", metrics={"loss": 0.5}, constraints={"mine": target})
    assert isinstance(sweep.cut_short, ConfigError)
    assert "divided gives no number" in str(sweep.cut_short)
    assert [each.status for each in trials] == [TrialStatus.FINISHED]
    assert sweep.unmended(trials) == []


def test_a_mistake_that_shows_before_anything_is_done_is_raised(search: Search) -> None:
    with pytest.raises(ConfigError, match=r"learning_rat\b"):
        search(
            "one",
            overrides=["+experiment=tiny"],
            custom_search_space={"_target_": "tests.tiny.spaces.misspelt_later"},
        )


def test_settings_that_are_built_have_a_target() -> None:
    sweep = SearchSweep(
        n_trials=0,
        n_jobs=True,
        sampler="tpe",
        pruner={},
        storage={"url": "a"},
        custom_search_space="f",
    )
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.sampler has no `_target_`") as raised:
        sweep.points([])
    assert [each.state.split()[0].rpartition(".")[2] for each in raised.value.problems] == [
        "n_trials",
        "n_jobs",
        "sampler",
        "pruner",
        "custom_search_space",
        "storage",
    ]


def test_names_of_metrics_are_checked_together(tmp_path: Path) -> None:
    sweep = SearchSweep(
        sampler={"_target_": "optuna.samplers.RandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"},
        objectives={"validation/los": "minimize", "validation/loss": "down"},
        constraints={"validation/accurac": {"max": 0.5}},
    )
    with pytest.raises(ConfigError, match="constraints names 'validation/accurac'") as raised:
        sweep.objectives(tiny())
    assert "hydra.sweeper.objectives names 'validation/los'" in str(raised.value)
    assert "hydra.sweeper.objectives.validation/loss is 'down'" in str(raised.value)
    assert "choices: validation/accuracy" in str(raised.value)


def test_a_custom_space_may_draw_any_key() -> None:
    points = [Point((), {"seed": "1"})]
    assert SearchSweep().swept(points) == {"seed"}
    assert SearchSweep(custom_search_space={"_target_": "f"}).swept(points) is None


def test_another_storage_is_another_sweep() -> None:
    found = [SearchSweep(storage=each).identity() for each in (None, "sqlite:///a", "sqlite:///b")]
    assert len(set(found)) == 3
    assert SearchSweep(n_trials=1).identity() == SearchSweep(n_trials=2).identity() == found[0]
