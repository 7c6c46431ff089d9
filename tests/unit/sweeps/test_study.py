"""Optuna's study of a search: its storage, sampler and pruner, and what it is given of attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.objectives import Objective, constraints, judged
from runner.sweeps.search import try_search
from runner.sweeps.search_space import Dimension, SearchSpace
from runner.sweeps.study import (
    Reporter,
    SearchStudy,
    build_sampler,
    open_storage,
    open_study,
)
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from tests.tiny.spaces import raising

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)
PRUNER = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}
SETTINGS: dict[str, Any] = {
    "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
    "pruner": PRUNER,
}
NOWHERE = SearchSpace((), ())


def _study(
    folder: Path,
    *objectives: Objective,
    settings: dict[str, Any] = SETTINGS,
    space: SearchSpace = NOWHERE,
) -> SearchStudy:
    storage = open_storage(folder, None)
    return open_study(storage, "s", settings, objectives or (LOSS,), space)


def _space(distribution: BaseDistribution) -> SearchSpace:
    return SearchSpace((), (Dimension("++seed", "seed", distribution),))


def _attempt(status: Status, trial: int = 0, **metrics: float) -> Attempt:
    return Attempt(trial, 1, (), {}, status=status, metrics=metrics)


def test_a_study_is_kept_in_the_sweeps_folder_and_resumed(tmp_path: Path) -> None:
    _study(tmp_path).ask()
    assert (tmp_path / "study.db").stat().st_mode & 0o777 == 0o600
    assert len(_study(tmp_path).trials) == 1


def test_a_storage_may_be_any_url_or_object(tmp_path: Path) -> None:
    storage = open_storage(tmp_path, f"sqlite:///{tmp_path}/other.db")
    assert (tmp_path / "other.db").exists()
    backend = "optuna.storages.journal.JournalFileBackend"
    journal = {"_target_": backend, "file_path": str(tmp_path / "journal")}
    node = {"_target_": "optuna.storages.JournalStorage", "log_storage": journal}
    assert type(open_storage(tmp_path, node)) is not type(storage)


@pytest.mark.parametrize(
    ("storage", "state"),
    [
        ("nosuch://host/db", "hydra.sweeper.storage cannot be opened"),
        ("nonsense", "hydra.sweeper.storage cannot be opened"),
        ("sqlite:///:memory:", "is sqlite:///:memory:, which is in the memory of one process"),
        ({"_target_": "optuna.storages.InMemoryStorage"}, "is optuna.storages.InMemoryStorage, wh"),
        ({"_target_": "optuna.storages.RDBStorage", "url": "sqlite://"}, "is optuna.storages.RDBS"),
    ],
)
def test_a_storage_that_no_other_process_can_open(tmp_path: Path, storage: Any, state: str) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.storage ") as raised:
        open_storage(tmp_path, storage)
    assert state in str(raised.value)


@pytest.mark.parametrize("other", [ACCURACY, Objective("validation/other", Goal.minimize)])
def test_a_study_with_other_objectives_is_refused(tmp_path: Path, other: Objective) -> None:
    _study(tmp_path)
    with pytest.raises(ConfigError, match="the study 's' exists, with the objectives") as raised:
        _study(tmp_path, other)
    assert "hydra.sweeper.study_name" in str(raised.value)


@pytest.mark.parametrize(
    ("before", "now", "mix"),
    [
        (CategoricalDistribution(["1"]), CategoricalDistribution(["1", "2"]), False),
        (CategoricalDistribution(["1", "2"]), IntDistribution(1, 2), False),
        (IntDistribution(1, 2), FloatDistribution(1, 2), False),
        (FloatDistribution(1, 2), FloatDistribution(1, 2, log=True), False),
        (IntDistribution(1, 2), IntDistribution(1, 5, step=2), True),
    ],
)
def test_a_study_of_values_that_do_not_mix_is_refused(
    tmp_path: Path, before: BaseDistribution, now: BaseDistribution, mix: bool
) -> None:
    _study(tmp_path).ask({"seed": before})
    if mix:
        _study(tmp_path, space=_space(now)).ask({"seed": now})
        return
    with pytest.raises(ConfigError, match="'s' exists, with other values of seed"):
        _study(tmp_path, space=_space(now))
    with pytest.raises(ValueError, match=r"dynamic value space|distribution|log configuration"):
        _study(tmp_path).ask({"seed": now})  # Optuna itself refuses them, too late.


def test_a_sampler_that_stops_has_exhausted_the_study(tmp_path: Path) -> None:
    node = {"_target_": "optuna.samplers.GridSampler", "search_space": {"seed": [1, 2]}}
    settings = {**SETTINGS, "sampler": node}
    study = _study(tmp_path, settings=settings)
    for left in (True, False):
        number = study.ask({"seed": IntDistribution(1, 8)}).number
        study.record(_attempt(Status.FINISHED, number, loss=0.5), {})
        assert study.exhausted() is not left
    assert study.count(TrialState.COMPLETE) == 2
    other = {**node, "search_space": {"seed": [3]}}
    assert not _study(tmp_path, settings={**SETTINGS, "sampler": other}).exhausted()
    assert not _study(tmp_path).exhausted()


STATES = {
    Status.FINISHED: TrialState.COMPLETE,
    Status.PRUNED: TrialState.PRUNED,
    Status.FAILED: TrialState.FAIL,
    Status.KILLED: TrialState.RUNNING,
    Status.SKIPPED: TrialState.RUNNING,
}


@pytest.mark.parametrize("status", STATES)
def test_the_study_is_brought_up_to_date_with_an_attempt(tmp_path: Path, status: Status) -> None:
    study = _study(tmp_path)
    bounds = constraints({"constraints": {"loss": {"max": 0.25}}})
    study.record(_attempt(status, study.ask().number, loss=0.5), bounds)
    (trial,) = study.trials
    assert trial.state is STATES[status]
    assert trial.values == ([0.5] if status is Status.FINISHED else None)
    ended = trial.state is not TrialState.RUNNING
    assert trial.user_attrs == ({"loss": 0.5} if ended else {})
    assert trial.constraints == ({"loss": 0.25} if ended else {})
    assert study.infeasible() == ({0} if ended else set())


def test_of_several_objectives_none_may_be_missing(tmp_path: Path) -> None:
    study = _study(tmp_path, LOSS, ACCURACY)
    for metrics in ({"loss": 0.5, "accuracy": 0.25}, {"loss": 0.5}, {"loss": float("nan")}):
        study.record(_attempt(Status.FINISHED, study.ask().number, **metrics), {})
    assert [trial.values for trial in study.trials] == [[0.5, 0.25], None, None]
    assert study.trials[1].state is TrialState.FAIL


def test_a_finished_trial_without_a_usable_objective_has_failed() -> None:
    finished = _attempt(Status.FINISHED, loss=0.5, accuracy=float("nan"))
    found = judged(finished, [LOSS, ACCURACY])
    assert (found.status, found.message) == (Status.FAILED, "validation/accuracy is nan")
    assert judged(finished, [LOSS]) is finished
    missing = judged(_attempt(Status.FINISHED), [LOSS])
    assert (missing.message, missing.exit_code) == ("validation/loss is missing", 1)
    killed = _attempt(Status.KILLED)
    assert judged(killed, [LOSS]) is killed


def test_of_trials_from_elsewhere_the_study_knows_those_that_have_ended(tmp_path: Path) -> None:
    study = _study(tmp_path)
    trial = study.ask()
    units = trial.suggest_int("+model.units", 1, 4)
    trial.report(0.75, 10)
    study.tell(trial, 0.5)
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask()
    complete, failed = study.ended()
    assert complete.values == {"model.units": str(units)}
    assert (LOSS.of(complete), complete.curve) == (0.5, ((10, 0.75),))
    assert (complete.status, failed.status) == (Status.FINISHED, Status.FAILED)
    assert failed.message == "it has no files in this folder"


def test_a_seed_is_another_one_when_a_study_is_resumed() -> None:
    def first(drawn: int, **node: Any) -> float:
        sampler: BaseSampler = build_sampler({"sampler": node}, drawn)
        return optuna.create_study(sampler=sampler).ask().suggest_float("x", 0.0, 1.0)

    random = {"_target_": "optuna.samplers.RandomSampler", "seed": 1}
    assert first(0, **random) == first(0, **random) != first(3, **random)
    # That one keeps its place in the study.
    space = {"x": [number / 50 for number in range(50)]}
    grid = {"_target_": "optuna.samplers.GridSampler", "search_space": space, "seed": 1}
    assert first(0, **grid) == first(3, **grid)


PLANE = SearchSpace(
    (),
    (
        Dimension("seed", "seed", IntDistribution(1, 8)),
        Dimension("rate", "rate", FloatDistribution(0.0, 1.0)),
    ),
)


def _try(*objectives: Objective, space: SearchSpace = PLANE, **node: Any) -> int:
    return len(try_search({"sampler": node, "pruner": PRUNER}, space, objectives or (LOSS,)))


SAMPLERS = ["CmaEsSampler", "TPESampler", "RandomSampler", "QMCSampler", "NSGAIISampler"]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_draw_with_what_the_extra_installs(name: str) -> None:
    assert _try(_target_=f"optuna.samplers.{name}") == 2


def test_a_grid_of_one_point_is_tried_once() -> None:
    grid = {"seed": [1], "rate": [0.5]}
    assert _try(_target_="optuna.samplers.GridSampler", search_space=grid) == 1


class Lazy(optuna.samplers.RandomSampler):
    """Imports a module when it draws, as Optuna's own do."""

    def sample_independent(self, *arguments: Any) -> Any:
        import no_such_package  # type: ignore[import-not-found] # noqa: F401


def _fails(**node: Any) -> Callable[[], int]:
    return lambda: _try(*node.pop("objectives", ()), **node)


@pytest.mark.parametrize(
    ("attempt", "cause"),
    [
        (_fails(_target_="optuna.samplers.GridSampler", search_space={"seed": [1, 2]}), "rate, is"),
        (
            _fails(_target_="optuna.samplers.CmaEsSampler", objectives=(LOSS, ACCURACY)),
            "multi-objective",
        ),
        (_fails(_target_=f"{__name__}.Lazy"), "No module named 'no_such_package'"),
    ],
)
def test_a_sampler_that_cannot_draw_is_found_before(attempt: Callable[[], int], cause: str) -> None:
    with pytest.raises(ConfigError, match="which draws no trial") as raised:
        attempt()
    assert cause in str(raised.value)


def test_a_mistake_of_a_custom_space_is_found_with_the_sampler() -> None:
    with pytest.raises(ZeroDivisionError):
        _try(space=SearchSpace((), (), raising), _target_="optuna.samplers.TPESampler")


def _reporter(folder: Path, number: int, storage: Any = None) -> Reporter:
    reference = {"name": "s", "trial": number, "metric": "loss", "pruner": PRUNER}
    return Reporter(folder, storage, reference)


def test_reports_reach_the_study_and_its_pruner_decides(tmp_path: Path) -> None:
    study = _study(tmp_path)
    number = study.ask().number
    report = _reporter(tmp_path, number)
    assert not report({"loss": 0.5, "accuracy": 0.0}, 10)
    # A resumed trial evaluates a step again.
    again = _reporter(tmp_path, number)
    assert not again({"loss": 0.5}, 10)
    assert again({"loss": 2.0}, 20)
    assert study.trials[0].intermediate_values == {10: 0.5, 20: 2.0}


def test_a_trial_continues_while_its_study_is_unreachable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = _study(tmp_path)
    database = tmp_path / "study.db"
    report = _reporter(tmp_path, study.ask().number)
    assert not report({"loss": 0.5}, 10)
    content = database.read_bytes()
    with caplog.at_level(logging.WARNING, "runner"):
        database.write_bytes(b"no database" * 1000)
        assert not report({"loss": 2.0}, 20)
    assert "Trial 0 continues, though step 20 cannot be reported to its study: " in caplog.text
    database.write_bytes(content)
    assert report({"loss": 2.0}, 30)
    assert study.trials[0].intermediate_values == {10: 0.5, 30: 2.0}
    assert not _reporter(tmp_path, 0, "nosuch://host/db")({"loss": 2.0}, 10)
    assert "hydra.sweeper.storage cannot be opened" in caplog.text
