from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from omegaconf import DictConfig, OmegaConf

from runner.config import RunConfig
from runner.errors import InterruptedRunError
from runner.sweeps.parent_run import ParentRun
from runner.tracking import PARENT_RUN


@pytest.fixture
def uri(migrated_database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


@pytest.fixture
def parent() -> Iterator[ParentRun]:
    callback = ParentRun()
    yield callback
    callback.on_multirun_end(OmegaConf.create())


def _config(uri: str, **values: str) -> DictConfig:
    given = {"name": "tiny", **values, "tracking": {"uri": uri}}
    config = OmegaConf.merge(
        OmegaConf.structured(RunConfig), {key: each for key, each in given.items() if each}
    )
    OmegaConf.set_struct(config, False)
    config.hydra = {"overrides": {"task": ["+experiment=tiny", "train.steps=1,2"]}}
    assert isinstance(config, DictConfig)
    return config


def _runs(uri: str, experiment: str = "tiny") -> list[tuple[str, str]]:
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    return [(run.info.run_name, run.info.status) for run in runs]


def test_trials_find_the_parent_until_the_sweep_ends(parent: ParentRun, uri: str) -> None:
    parent.on_multirun_start(_config(uri))
    run = MlflowClient(uri).get_run(os.environ[PARENT_RUN])
    assert run.info.status == "RUNNING"
    assert run.data.tags["runner.overrides"] == "+experiment=tiny train.steps=1,2"
    parent.on_multirun_end(_config(uri))
    assert PARENT_RUN not in os.environ
    assert _runs(uri) == [("tiny sweep", "FINISHED")]


def test_a_sweep_over_experiments_has_a_name_of_its_own(parent: ParentRun, uri: str) -> None:
    parent.on_multirun_start(_config(uri, name=""))
    assert _runs(uri, "sweep") == [("sweep", "RUNNING")]


def test_a_sweep_that_trains_nothing_has_no_parent(parent: ParentRun, uri: str) -> None:
    parent.on_multirun_start(_config(uri, mode="plan"))
    assert PARENT_RUN not in os.environ
    assert _runs(uri) == []


def test_a_signal_between_trials_ends_the_sweep(parent: ParentRun, uri: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    parent.on_multirun_start(_config(uri))
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    ParentRun.interrupted()
    assert _runs(uri) == [("tiny sweep", "KILLED")]
    assert PARENT_RUN not in os.environ
    assert signal.getsignal(signal.SIGTERM) is before
    ParentRun.interrupted()


def test_what_ends_the_sweep_first_counts(parent: ParentRun, uri: str) -> None:
    parent.on_multirun_start(_config(uri))
    ParentRun.interrupted()
    parent.on_multirun_end(_config(uri))
    assert _runs(uri) == [("tiny sweep", "KILLED")]
