from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import optuna
import pytest

from runner.config.choices import Goal
from runner.sweeps.reporting import Reporter
from runner.sweeps.study import open_study
from runner.sweeps.study_storage import DATABASE, open_storage
from runner.sweeps.summary import Objective

PRUNER = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 1.0}
SWEEPER: dict[str, Any] = {
    "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 1},
    "pruner": PRUNER,
}


def _study(folder: Path) -> optuna.Study:
    objective = Objective("validation/loss", Goal.minimize)
    return open_study(open_storage(folder, None), "s", SWEEPER, [objective])


def _reporter(folder: Path, trial: optuna.Trial) -> Reporter:
    reference = {"name": "s", "trial": trial.number, "metric": "loss", "pruner": PRUNER}
    return Reporter(folder, None, reference)


def test_reports_reach_the_study_and_its_pruner_decides(tmp_path: Path) -> None:
    study = _study(tmp_path)
    trial = study.ask()
    report = _reporter(tmp_path, trial)
    assert not report({"loss": 0.5, "accuracy": 0.0}, 10)
    # A resumed trial evaluates a step again.
    again = _reporter(tmp_path, trial)
    assert not again({"loss": 0.5}, 10)
    assert again({"loss": 2.0}, 20)
    assert study.trials[0].intermediate_values == {10: 0.5, 20: 2.0}


def test_a_trial_goes_on_while_its_study_is_out_of_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = _study(tmp_path)
    database = tmp_path / DATABASE
    report = _reporter(tmp_path, study.ask())
    assert not report({"loss": 0.5}, 10)
    content = database.read_bytes()
    with caplog.at_level(logging.WARNING, "runner"):
        database.write_bytes(b"no database" * 1000)
        assert not report({"loss": 2.0}, 20)
    assert "Trial 0 goes on, though its study cannot be told of step 20: " in caplog.text
    database.write_bytes(content)
    assert report({"loss": 2.0}, 30)
    assert study.trials[0].intermediate_values == {10: 0.5, 30: 2.0}


def test_a_study_that_cannot_be_opened_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = {"name": "s", "trial": 0, "metric": "loss", "pruner": PRUNER}
    report = Reporter(tmp_path, "nosuch://host/db", reference)
    assert not report({"loss": 2.0}, 10)
    assert "hydra.sweeper.storage cannot be opened" in caplog.text
