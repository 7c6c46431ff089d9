"""What older versions of MLflow do otherwise."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from runner.config.schema import TrackingConfig
from runner.config.validation import validate
from runner.errors import ConfigError
from runner.internals.mlflow import installed, without_stored_nans
from runner.tracking.mlflow_store import MlflowStore
from tests.support.configs import PLAIN, tiny
from tests.support.recorded_runs import identity


def test_only_nans_that_a_run_has_are_left_out(database: Path) -> None:
    store = MlflowStore(f"sqlite:///{database}")
    run_id = store.find_or_create(identity("plain"), None, None).run_id
    client = MlflowClient(tracking_uri=store.address.uri)
    stored = [Metric("loss", math.nan, 5, 1), Metric("accuracy", 0.5, 5, 1)]
    client.log_batch(run_id, stored)
    other = Metric("loss", math.nan, 5, 2)
    assert without_stored_nans(client, run_id, [*stored, other]) == [stored[1], other]


def test_a_database_is_opened_without_a_change_of_the_log(database: Path) -> None:
    logger = logging.getLogger()
    before = logger.level, [*logger.handlers]
    MlflowStore(f"sqlite:///{database}").connect()
    assert (logger.level, [*logger.handlers]) == before


def test_the_load_of_a_machine_needs_mlflow_3_7(monkeypatch: pytest.MonkeyPatch) -> None:
    config = asdict(tiny(**PLAIN, tracking=TrackingConfig(system_metrics=True)))
    if installed() >= (3, 7):
        validate(config)
    monkeypatch.setattr("runner.internals.mlflow.version", lambda _: "3.6.0")
    with pytest.raises(ConfigError, match=r"MLflow before 3\.7"):
        validate(config)
