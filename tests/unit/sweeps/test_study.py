from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.search_space import Dimension, SearchSpace
from runner.sweeps.study import (
    attempt_of,
    check,
    check_study,
    custom_points,
    custom_space,
    exhausted,
    judged,
    objectives_of,
    open_study,
    tell,
)
from runner.sweeps.study_storage import open_storage
from runner.sweeps.summary import Objective
from tests.tiny.spaces import conditional

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)
METRICS = [LOSS.name, ACCURACY.name]
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
    assert (tmp_path / "study.db").stat().st_mode & 0o777 == 0o600
    assert len(_study(tmp_path).trials) == 1


def test_a_study_with_other_objectives_is_refused(tmp_path: Path) -> None:
    _study(tmp_path)
    with pytest.raises(ConfigError, match="the study 's' exists, with the objectives") as raised:
        _study(tmp_path, ACCURACY)
    assert "hydra.sweeper.study_name" in str(raised.value)
    with pytest.raises(ConfigError, match="exists"):
        _study(tmp_path, Objective("validation/other", Goal.minimize))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (CategoricalDistribution(["1", "2"]), CategoricalDistribution(["1", "2", "3"])),
        (CategoricalDistribution(["1", "2"]), IntDistribution(1, 2)),
        (IntDistribution(1, 2), FloatDistribution(1, 2)),
        (FloatDistribution(1, 2), FloatDistribution(1, 2, log=True)),
        (IntDistribution(1, 2), IntDistribution(1, 5, step=2)),
    ],
)
def test_a_study_of_other_values_is_refused(
    tmp_path: Path, before: BaseDistribution, now: BaseDistribution
) -> None:
    study = _study(tmp_path)
    study.ask({"seed": before})
    space = SearchSpace((), (Dimension("++seed", "seed", now), Dimension("b", "b", now)))
    try:
        study.ask({"seed": now})
    except ValueError:  # Optuna itself refuses them, too late.
        with pytest.raises(ConfigError, match="'s' exists, with other values of seed") as raised:
            check_study(study, [LOSS], space)
        assert "hydra.sweeper.study_name" in str(raised.value)
    else:
        check_study(study, [LOSS], space)
        assert now == IntDistribution(1, 5, step=2)


def test_a_sampler_that_stops_has_exhausted_the_study(tmp_path: Path) -> None:
    node = {"_target_": "optuna.samplers.GridSampler", "search_space": {"seed": [1, 2]}}
    sweeper = {**SWEEPER, "sampler": node}
    study = open_study(open_storage(tmp_path, None), "s", sweeper, [LOSS])
    for left in (True, False):
        number = study.ask({"seed": IntDistribution(1, 8)}).number
        tell(study, number, _attempt(TrialStatus.FINISHED, loss=0.5), [LOSS])
        assert exhausted(study, sweeper) is not left
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
    assert not exhausted(study, {**sweeper, "sampler": {**node, "search_space": {"seed": [3]}}})
    assert not exhausted(study, SWEEPER)


@pytest.mark.parametrize(
    ("storage", "named"),
    [
        ({"_target_": "optuna.storages.InMemoryStorage"}, "optuna.storages.InMemoryStorage"),
        ({"_target_": "optuna.storages.RDBStorage", "url": "sqlite://"}, "optuna.storages.RDBStor"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
    ],
)
def test_a_storage_that_is_no_other_processs_is_refused(
    tmp_path: Path, storage: Any, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"hydra.sweeper.storage is {named}") as raised:
        check(tmp_path, {**SWEEPER, "storage": storage})
    assert "in the memory of one process" in str(raised.value)
    assert "sqlite:///study.db" in str(raised.value)


STATES = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.PRUNED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.KILLED: TrialState.RUNNING,
    TrialStatus.SKIPPED: TrialState.RUNNING,
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


def test_a_finished_trial_without_a_usable_objective_has_failed() -> None:
    finished = _attempt(TrialStatus.FINISHED, loss=0.5, accuracy=float("nan"))
    found = judged(finished, [LOSS, ACCURACY])
    assert (found.status, found.message) == (TrialStatus.FAILED, "validation/accuracy is nan")
    assert judged(finished, [LOSS]) is finished
    missing = judged(_attempt(TrialStatus.FINISHED), [LOSS])
    assert (missing.message, missing.exit_code) == ("validation/loss is missing", 1)
    killed = _attempt(TrialStatus.KILLED)
    assert judged(killed, [LOSS]) is killed


def test_objectives_are_the_experiments_or_the_sweepers() -> None:
    assert objectives_of(SWEEPER, LOSS, METRICS) == [LOSS]
    given = {**SWEEPER, "objectives": {"validation/accuracy": "maximize"}}
    assert objectives_of(given, LOSS, METRICS) == [ACCURACY]


def test_mistakes_in_objectives_are_told_together() -> None:
    given = {"validation/loss": "minimise", "validation/accuracy": "maximize"}
    with pytest.raises(ConfigError, match="it must be a goal") as raised:
        objectives_of({**SWEEPER, "objectives": given}, LOSS, METRICS)
    assert "there are 2 objectives, and trials are pruned by one" in str(raised.value)


def test_objectives_are_a_mapping_to_texts() -> None:
    with pytest.raises(
        ConfigError, match=r"hydra\.sweeper\.objectives is 'validation/loss'"
    ) as raised:
        objectives_of({**SWEEPER, "objectives": "validation/loss"}, LOSS, METRICS)
    assert "it must be a mapping" in str(raised.value)
    assert "hydra.sweeper.objectives={validation/loss: minimize}" in str(raised.value)
    with pytest.raises(ConfigError, match=r"loss is \[1\]"):
        objectives_of({**SWEEPER, "objectives": {"validation/loss": [1]}}, LOSS, METRICS)


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


def test_of_trials_from_elsewhere_the_study_tells(tmp_path: Path) -> None:
    study = _study(tmp_path)
    trial = study.ask()
    units = trial.suggest_int("+model.units", 1, 4)
    trial.report(0.75, 10)
    study.tell(trial, 0.5)
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask()
    complete, failed, running = (attempt_of(each, [LOSS]) for each in study.trials)
    assert complete.values == {"model.units": str(units)}
    assert (LOSS.of(complete), complete.curve) == (0.5, ((10, 0.75),))
    assert [each.status.value for each in (complete, failed, running)] == [
        "FINISHED",
        "FAILED",
        "RUNNING",
    ]
    assert failed.message == "it was tried from another folder"


def test_a_custom_space_takes_arguments_besides_the_trial(tmp_path: Path) -> None:
    node = {"_target_": "tests.tiny.spaces.conditional", "most": 1}
    space = custom_space({"custom_search_space": node})
    assert space is not None
    trial = _study(tmp_path).ask()
    space(trial)
    assert trial.params["+model.units"] == 1
    assert custom_space({}) is None


@pytest.mark.parametrize(
    ("name", "state"),
    [("raising", "raises ZeroDivisionError"), ("returning", "returns 0.5")],
)
def test_what_a_custom_space_does_wrong_is_told(tmp_path: Path, name: str, state: str) -> None:
    target = f"tests.tiny.spaces.{name}"
    space = custom_space({"custom_search_space": {"_target_": target}})
    assert space is not None
    with pytest.raises(ConfigError, match=f"custom_search_space: {target} {state}"):
        space(_study(tmp_path).ask())


def test_a_custom_space_is_tried_without_a_study_of_its_own() -> None:
    points = custom_points(SearchSpace(("a=1",), ()), conditional)
    assert {point.overrides[0] for point in points} == {"a=1"}
    # Both branches occur.
    assert {point.values["optimizer"] for point in points} == {"adam", "sgd"}
