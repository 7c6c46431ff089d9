"""What a run does with its sources: verified, finite, optional, frozen for a while."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from runner.config.choices import Initialize
from runner.config.schema import (
    RestorationConfig,
    RunConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.console import Screen
from runner.errors import CheckpointError
from runner.run import run_experiment
from runner.runs.run_directory import RunDirectory
from runner.training.run import Surroundings
from tests.tiny.configs import tiny

BIAS = "body/dense/bias"


def _npz(folder: Path, value: float = 3.0) -> str:
    path = folder / "weights.npz"
    np.savez(path, allow_pickle=False, **{BIAS: np.full(4, value, np.float32)})
    return str(path)


def _config(folder: Path, checkpoint: str, **changes: Any) -> RunConfig:
    scaffold = ScaffoldConfig(VariablesConfig([BIAS]), checkpoint, **changes)
    return tiny(
        run_dir=str(folder / "runs"),
        scaffolds={"bias": scaffold},
        train=TrainConfig(steps=4, log_every=4, evaluate_every=4, checkpoint_every=2),
    )


def _run(config: RunConfig) -> str:
    shown = io.StringIO()
    run_experiment(config, Surroundings(screen=Screen(Console(file=shown, width=200))))
    return shown.getvalue()


def _value(config: RunConfig, step: int, name: str = BIAS) -> Any:
    prefix = f"{config.run_dir}/001/checkpoints/model.ckpt-{step}"
    return tf.train.load_variable(prefix, name)


@pytest.mark.parametrize("initialize", Initialize)
def test_a_verified_run_trains_on_from_its_source(tmp_path: Path, initialize: Initialize) -> None:
    config = _config(tmp_path, _npz(tmp_path), trainable=False)
    config.restoration = RestorationConfig(verify=True, initialize=initialize)
    _run(config)
    assert np.array_equal(_value(config, 4), np.full(4, 3.0))


def test_nan_in_a_source_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = _config(tmp_path, _npz(tmp_path, np.nan), trainable=False)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="the loss is nan"):
        _run(config)
    assert BIAS in caplog.text


def test_nan_in_a_source_that_must_be_finite_is_an_error(tmp_path: Path) -> None:
    config = _config(tmp_path, _npz(tmp_path, np.nan), finite=True)
    with pytest.raises(CheckpointError, match=BIAS):
        _run(config)
    directory = RunDirectory(Path(config.run_dir) / "001")
    assert directory.require().status == "FAILED"
    assert not directory.has_checkpoint()


def test_an_optional_source_that_is_absent_leaves_its_variables_to_initializers(
    tmp_path: Path,
) -> None:
    config = _config(tmp_path, str(tmp_path / "nowhere"), optional=True)
    assert "bias: 1 variable (4 values) from initializers" in _run(config)
    provenance = json.loads((Path(config.run_dir) / "001" / "provenance.json").read_text())
    assert provenance["sources"] == {}
    assert "initializer" in provenance["variables"][BIAS]


def test_a_freeze_holds_until_its_step(tmp_path: Path) -> None:
    config = _config(tmp_path, _npz(tmp_path), freeze_until_step=2, learning_rate_multiplier=0.5)
    _run(config)
    assert np.array_equal(_value(config, 2), np.full(4, 3.0))
    assert not np.any(_value(config, 2, f"{BIAS}/Adam"))
    # Adam moves each value by about its learning rate, 0.01 * 0.5, in the first steps.
    moved = np.abs(_value(config, 4) - 3.0)
    assert np.all(moved > 0)
    assert np.all(moved <= 0.0101)
    plan = (Path(config.run_dir) / "001" / "plan.txt").read_text()
    assert "trainable from step 2, learning rate x0.5" in plan
