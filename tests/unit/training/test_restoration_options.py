"""What a run does with its sources: verified, finite, optional, frozen for a while."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import Initialize
from runner.config.schema import RestorationConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import CheckpointError
from tests.tiny.runs import Runs

BIAS = "body/bias"


@pytest.fixture(autouse=True)
def _few_steps(plain: Runs) -> None:
    train = TrainConfig(steps=4, log_every=4, evaluate_every=4, checkpoint_every=2)
    plain.changes["train"] = train


def _weights(folder: Path, value: float = 3.0) -> str:
    path = folder / "weights.npz"
    np.savez(path, allow_pickle=False, **{BIAS: np.full(4, value, np.float32)})
    return str(path)


def _bias(checkpoint: str, **changes: Any) -> dict[str, ScaffoldConfig]:
    return {"bias": ScaffoldConfig(VariablesConfig([BIAS]), checkpoint, **changes)}


def _value(runs: Runs, step: int, name: str = BIAS) -> Any:
    return tf.train.load_variable(f"{runs.directory().checkpoints}/model.ckpt-{step}", name)


@pytest.mark.parametrize("initialize", Initialize)
def test_a_verified_run_trains_on_from_its_source(
    plain: Runs, tmp_path: Path, initialize: Initialize
) -> None:
    plain.run(
        scaffolds=_bias(_weights(tmp_path), trainable=False),
        restoration=RestorationConfig(verify=True, initialize=initialize),
    )
    assert np.array_equal(_value(plain, 4), np.full(4, 3.0))


def test_nan_in_a_source_is_a_warning(
    plain: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scaffolds = _bias(_weights(tmp_path, np.nan), trainable=False)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="the loss is nan"):
        plain.run(scaffolds=scaffolds)
    assert BIAS in caplog.text


def test_nan_in_a_source_that_must_be_finite_is_an_error(plain: Runs, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=BIAS):
        plain.run(scaffolds=_bias(_weights(tmp_path, np.nan), finite=True))
    assert plain.record().status == "FAILED"
    assert not plain.directory().has_checkpoint()


def test_an_absent_optional_source_leaves_its_variables_to_initializers(
    plain: Runs, tmp_path: Path
) -> None:
    _, lines = plain.run(scaffolds=_bias(str(tmp_path / "nowhere"), optional=True))
    assert any("bias: 1 variable (4 values) from initializers" in line for line in lines)
    provenance = json.loads((plain.directory().path / "provenance.json").read_text())
    assert provenance["sources"] == {}
    assert "initializer" in provenance["variables"][BIAS]


def test_a_freeze_holds_until_its_step(plain: Runs, tmp_path: Path) -> None:
    schedule = {"freeze_until_step": 2, "learning_rate_multiplier": 0.5}
    plain.run(scaffolds=_bias(_weights(tmp_path), **schedule))
    assert np.array_equal(_value(plain, 2), np.full(4, 3.0))
    assert not np.any(_value(plain, 2, f"{BIAS}/Adam"))
    # Adam moves each value by about its learning rate, 0.01 * 0.5, in the first steps.
    moved = np.abs(_value(plain, 4) - 3.0)
    assert np.all(moved > 0)
    assert np.all(moved <= 0.0101)
    plan = (plain.directory().path / "plan.txt").read_text()
    assert "trainable from step 2, learning rate x0.5" in plan
