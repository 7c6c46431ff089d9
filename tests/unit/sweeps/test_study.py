"""Optuna's study of a search: its storage, sampler and pruner, and what it is given of attempts."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.objectives import Objective, fail_if_nan
from runner.sweeps.search import try_search
from runner.sweeps.search_space import Dimension, SearchSpace
from runner.sweeps.study import Reporter, SearchStudy, build_sampler, open_storage, open_study
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from tests.support.sweeping import ACCURACY, LOSS

PRUNER = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}
SETTINGS: dict[str, Any] = {
    "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
    "pruner": PRUNER,
}


@pytest.fixture
def folder(tmp_path: Path, empty_study: Path) -> Path:
    return Path(shutil.copy(empty_study, tmp_path)).parent


def _study(folder: Path, *objectives: Objective) -> SearchStudy:
    return open_study(open_storage(folder, None), "s", SETTINGS, objectives or (LOSS,))


def _attempt(status: Status, trial: int = 0, **metrics: float) -> Attempt:
    return Attempt(trial, status=status, metrics=metrics)


def test_a_study_is_kept_in_the_sweeps_folder_or_another_storage(tmp_path: Path) -> None:
    _study(tmp_path).ask()
    assert (tmp_path / "study.db").stat().st_mode & 0o777 == 0o600
    assert len(_study(tmp_path).trials) == 1
    other = open_storage(tmp_path, f"sqlite:///{tmp_path}/study.db")
    assert len(other.get_all_studies()) == 1
    backend = "optuna.storages.journal.JournalFileBackend"
    journal = {"_target_": backend, "file_path": str(tmp_path / "journal")}
    node = {"_target_": "optuna.storages.JournalStorage", "log_storage": journal}
    assert open_storage(tmp_path, node).get_all_studies() == []


def test_a_study_with_other_objectives_is_refused(folder: Path) -> None:
    _study(folder)
    for other in (ACCURACY, Objective("validation/other", Goal.minimize)):
        with pytest.raises(
            ConfigError, match="the study 's' exists, with the objectives"
        ) as raised:
            _study(folder, other)
        assert "hydra.sweeper.study_name" in str(raised.value)


STATES = {
    Status.FINISHED: TrialState.COMPLETE,
    Status.PRUNED: TrialState.PRUNED,
    Status.FAILED: TrialState.FAIL,
    Status.KILLED: TrialState.RUNNING,
    Status.SKIPPED: TrialState.RUNNING,
}


def test_the_study_is_brought_up_to_date_with_attempts(folder: Path) -> None:
    study = open_study(open_storage(folder, None), "s", SETTINGS, (LOSS,))
    for status in STATES:
        study.record(_attempt(status, study.ask().number, loss=0.5))
    for status, trial in zip(STATES, study.trials, strict=True):
        assert trial.state is STATES[status]
        assert trial.values == ([0.5] if status is Status.FINISHED else None)
        ended = trial.state is not TrialState.RUNNING
        assert trial.user_attrs == ({"loss": 0.5} if ended else {})


def test_a_finished_trial_without_a_usable_objective_has_failed() -> None:
    both = [LOSS, ACCURACY]
    lacking = fail_if_nan(_attempt(Status.FINISHED, accuracy=math.nan), both)
    message = "validation/loss is missing; validation/accuracy is nan"
    assert (lacking.status, lacking.message, lacking.exit_code) == (Status.FAILED, message, 1)
    for fine in (_attempt(Status.FINISHED, loss=0.5, accuracy=0.25), _attempt(Status.KILLED)):
        assert fail_if_nan(fine, both) is fine


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


def _try(*objectives: Objective, space: SearchSpace = PLANE, **node: Any) -> None:
    try_search({"sampler": node, "pruner": PRUNER}, space, objectives or (LOSS,))


@pytest.mark.parametrize("name", ["CmaEs", "TPE", "QMC", "NSGAII"])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_draw_with_what_the_extra_installs(name: str) -> None:
    _try(_target_=f"optuna.samplers.{name}Sampler")
    one = {"seed": [1], "rate": [0.5]}
    _try(_target_="optuna.samplers.GridSampler", search_space=one)  # It ends after one.


class Lazy(optuna.samplers.RandomSampler):
    """Imports a module when it draws, as Optuna's own do."""

    def sample_independent(self, *arguments: Any) -> Any:
        import no_such_package  # type: ignore[import-not-found] # noqa: F401


@pytest.mark.parametrize(
    ("node", "objectives", "cause"),
    [
        ({"_target_": "optuna.samplers.GridSampler", "search_space": {"seed": [1]}}, 1, "rate, is"),
        ({"_target_": "optuna.samplers.CmaEsSampler"}, 2, "multi-objective"),
        ({"_target_": f"{__name__}.Lazy"}, 1, "No module named 'no_such_package'"),
    ],
)
def test_a_sampler_that_cannot_draw_is_found_before(
    node: dict[str, Any], objectives: int, cause: str
) -> None:
    with pytest.raises(ConfigError, match="which draws no trial") as raised:
        _try(*[LOSS, ACCURACY][:objectives], **node)
    assert cause in str(raised.value)


def _reporter(folder: Path, number: int, storage: Any = None) -> Reporter:
    attempt = Attempt(number, metric="validation/loss", study="s")
    return Reporter(folder, {"storage": storage, "pruner": PRUNER}, attempt)


def test_reports_reach_the_study_and_its_pruner_decides(folder: Path) -> None:
    study = _study(folder)
    number = study.ask().number
    report = _reporter(folder, number)
    assert not report({"loss": 0.5, "accuracy": 0.0}, 10)
    # A resumed trial evaluates a step again.
    again = _reporter(folder, number)
    assert not again({"loss": 0.5}, 10)
    assert again({"loss": 2.0}, 20)
    assert study.trials[0].intermediate_values == {10: 0.5, 20: 2.0}


def test_a_trial_continues_while_its_study_is_unreachable(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = _study(folder)
    database = folder / "study.db"
    report = _reporter(folder, study.ask().number)
    assert not report({"loss": 0.5}, 10)
    content = database.read_bytes()
    with caplog.at_level(logging.WARNING, "runner"):
        database.write_bytes(b"no database" * 1000)
        assert not report({"loss": 2.0}, 20)
    assert "Trial 0 continues, though step 20 cannot be reported to its study: " in caplog.text
    database.write_bytes(content)
    assert report({"loss": 2.0}, 30)
    assert study.trials[0].intermediate_values == {10: 0.5, 30: 2.0}
    assert not _reporter(folder, 0, "nosuch://host/db")({"loss": 2.0}, 10)
    assert "hydra.sweeper.storage cannot be opened" in caplog.text


@pytest.mark.parametrize("name", ["my %41 [1] #2", "q?b", "{x}", "it's a=b größe🙂"])
def test_the_folder_of_a_study_may_have_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    optuna.create_study(storage=open_storage(folder, None), study_name="search")
    assert sorted(path.name for path in folder.iterdir()) == ["study.db", "study.lock"]
    assert optuna.load_study(storage=open_storage(folder, None), study_name="search").trials == []
