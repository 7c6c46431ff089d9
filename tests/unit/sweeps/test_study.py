from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from runner.config import Goal
from runner.errors import ConfigError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.study import (
    check,
    constraints,
    custom_space,
    objectives_of,
    open_storage,
    open_study,
    reporter,
    tell,
)
from runner.sweeps.summary import Objective

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)
SWEEPER: dict[str, Any] = {
    "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
    "pruner": {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0},
}


def _study(folder: Path, *objectives: Objective) -> optuna.Study:
    return open_study(open_storage(folder, None), "s", SWEEPER, objectives or (LOSS,))


def _attempt(status: TrialStatus, **metrics: float) -> Attempt:
    return Attempt(0, 1, (), {}, status=status, metrics=metrics)


def test_a_study_is_kept_in_the_sweeps_folder_and_gone_on_with(tmp_path: Path) -> None:
    _study(tmp_path).ask()
    assert (tmp_path / "study.db").exists()
    assert len(_study(tmp_path).trials) == 1


def test_a_study_with_other_objectives_is_refused(tmp_path: Path) -> None:
    _study(tmp_path)
    with pytest.raises(ConfigError, match="the study 's' exists, with the objectives") as raised:
        _study(tmp_path, ACCURACY)
    assert "hydra.sweeper.study_name" in str(raised.value)
    with pytest.raises(ConfigError, match="exists"):
        _study(tmp_path, Objective("validation/other", Goal.minimize))


def test_a_storage_may_be_any_url_or_object(tmp_path: Path) -> None:
    storage = open_storage(tmp_path, f"sqlite:///{tmp_path}/other.db")
    assert (tmp_path / "other.db").exists()
    node = {
        "_target_": "optuna.storages.JournalStorage",
        "log_storage": {
            "_target_": "optuna.storages.journal.JournalFileBackend",
            "file_path": str(tmp_path / "journal"),
        },
    }
    assert type(open_storage(tmp_path, node)) is not type(storage)


@pytest.mark.parametrize("url", ["nosuch://host/db", "nonsense"])
def test_a_storage_that_cannot_be_opened(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.storage cannot be opened"):
        open_storage(tmp_path, url)


def test_reports_reach_the_study_and_its_pruner_decides(tmp_path: Path) -> None:
    study = _study(tmp_path)
    trial = study.ask()
    told = {
        "name": "s",
        "trial": trial.number,
        "metric": "loss",
        "pruner": SWEEPER["pruner"],
    }
    report = reporter(tmp_path, None, told)
    assert not report({"loss": 0.5, "accuracy": 0.0}, 10)
    # A resumed trial evaluates a step again.
    again = reporter(tmp_path, None, told)
    assert not again({"loss": 0.5}, 10)
    assert again({"loss": 2.0}, 20)
    assert study.trials[0].intermediate_values == {10: 0.5, 20: 2.0}


STATES = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.PRUNED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.KILLED: TrialState.FAIL,
}


@pytest.mark.parametrize("status", STATES)
def test_what_became_of_a_trial_is_told(tmp_path: Path, status: TrialStatus) -> None:
    study = _study(tmp_path)
    number = study.ask().number
    tell(study, number, _attempt(status, loss=0.5), [LOSS])
    (trial,) = study.trials
    assert trial.state is STATES[status]
    assert trial.values == ([0.5] if status is TrialStatus.FINISHED else None)


def test_several_objectives_are_told_and_none_may_be_missing(tmp_path: Path) -> None:
    study = _study(tmp_path, LOSS, ACCURACY)
    finished = TrialStatus.FINISHED
    tell(study, study.ask().number, _attempt(finished, loss=0.5, accuracy=0.25), [LOSS, ACCURACY])
    for incomplete in ({"loss": 0.5}, {"loss": float("nan"), "accuracy": 1.0}):
        attempt = _attempt(finished, **incomplete)
        tell(study, study.ask().number, attempt, [LOSS, ACCURACY])
    assert [trial.values for trial in study.trials] == [[0.5, 0.25], None, None]
    assert study.trials[1].state is TrialState.FAIL


def test_constraints_are_bounds_or_functions() -> None:
    found = constraints(
        {
            "constraints": {
                "validation/loss": {"max": 0.5, "min": 0.25},
                "accurate": {"_target_": "tests.tiny.spaces.accurate", "least": 0.75},
            }
        }
    )
    metrics = {"loss": 1.0, "accuracy": 1.0}
    assert {name: each(metrics) for name, each in found.items()} == {
        "validation/loss": 0.5,
        "accurate": -0.25,
    }
    assert found["validation/loss"]({"loss": 0.125}) == 0.125


def test_a_constraint_says_what_it_asks() -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.constraints\.loss is 0\.5"):
        constraints({"constraints": {"loss": 0.5}})


def test_objectives_are_the_experiments_or_the_sweepers() -> None:
    assert objectives_of(SWEEPER, LOSS) == [LOSS]
    given = {**SWEEPER, "objectives": {"validation/accuracy": "maximize"}}
    assert objectives_of(given, LOSS) == [ACCURACY]


def test_mistakes_in_objectives_are_told_together() -> None:
    given = {"validation/loss": "minimise", "validation/accuracy": "maximize"}
    with pytest.raises(ConfigError, match="it must be a goal") as raised:
        objectives_of({**SWEEPER, "objectives": given}, LOSS)
    assert "there are 2 objectives, and trials are pruned by one" in str(raised.value)


def test_all_mistakes_in_a_search_are_told_together(tmp_path: Path) -> None:
    sweeper = {
        "sampler": {"_target_": "optuna.samplers.Nosuch"},
        "pruner": {"_target_": "optuna.pruners.NopPruner", "patience": 1},
        "custom_search_space": {"_target_": "tests.tiny.spaces.conditional", "mots": 1},
        "constraints": {"loss": 0.5},
    }
    with pytest.raises(ConfigError) as raised:
        check(tmp_path, sweeper)
    assert [each.state.partition(" is ")[0] for each in raised.value.problems] == [
        "hydra.sweeper.sampler._target_",
        "hydra.sweeper.pruner.patience",
        "hydra.sweeper.custom_search_space.mots",
        "hydra.sweeper.constraints.loss",
    ]
    check(tmp_path, SWEEPER)
    assert list(tmp_path.iterdir()) == []


def test_a_custom_space_takes_arguments_besides_the_trial(tmp_path: Path) -> None:
    node = {"_target_": "tests.tiny.spaces.conditional", "most": 1}
    space = custom_space({"custom_search_space": node})
    assert space is not None
    trial = _study(tmp_path).ask()
    space(trial)
    assert trial.params["+model.units"] == 1
    assert custom_space({}) is None
