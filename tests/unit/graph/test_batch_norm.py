"""Batch-norm statistics of frozen scaffolds stay, as those of Keras's frozen layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig
from runner.lifecycle import run_experiment
from tests.support.configs import tiny

HERE = "tests.unit.graph.test_batch_norm"


class Data:
    """Two classes of points, far from mean 0 and variance 1."""

    def _batches(self) -> tf.data.Dataset:
        points = np.random.default_rng(0).normal(5, 3, [32, 4]).astype("float32")
        labels = (points.sum(1) > 20).astype("int32")
        return tf.data.Dataset.from_tensor_slices((points, labels)).batch(8)

    def train(self) -> tf.data.Dataset:
        """Returns the batches without end."""
        return self._batches().repeat()

    validation = test = _batches


class Net(keras.Model):
    """A body to freeze, and a head; its variables are created when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.layers.Dense(3, name="body_dense")
        self.body_norm = keras.layers.BatchNormalization(name="body_norm")
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.head = keras.layers.Dense(2, activation="softmax", name="head")

    def call(self, points: Any, training: bool = False) -> Any:
        """See `keras.Model.call`."""
        hidden = self.body_norm(self.body(points), training=training)
        return self.head(self.norm(hidden, training=training))


class Stepping(Net):
    """The same with a training step of its own."""

    def train_step(self, data: Any) -> Any:
        """See `keras.Model.train_step`."""
        return super().train_step(data)


def functional() -> keras.Model:
    """Returns the same as a functional model, whose variables are known at once."""
    points = keras.Input((4,))
    return keras.Model(points, Net().call(points))


def stepping() -> keras.Model:
    """Returns a compiled model."""
    model = Stepping()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def config(model: str, directory: Path, **settings: Any) -> RunConfig:
    """Returns the configuration of a run of 3 steps with a frozen body."""
    body = ScaffoldConfig(VariablesConfig(["body_*"]), trainable=False, **settings)
    built = tiny(
        data={"_target_": f"{HERE}.Data"},
        model={"_target_": f"{HERE}.{model}"},
        loss=None if model == "stepping" else "sparse_categorical_crossentropy",
        metrics={},
        scaffolds={"body": body},
        run_dir=str(directory),
    )
    if model == "stepping":
        built.optimizer = {}
    built.train.steps = built.train.checkpoint_every = 3
    built.train.objective = "validation/loss"
    built.tracking.uri = None
    return built


def moved(directory: Path) -> dict[str, bool]:
    """Returns for each layer whether its moving mean changed."""
    (index,) = (directory / "checkpoints").glob("*-3.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: bool(reader.get_tensor(f"{name}/moving_mean").any()) for name in NORMS}


NORMS = ("body_norm", "norm")


@pytest.mark.parametrize(
    ("model", "update_statistics"),
    [("functional", False), ("functional", True), ("Net", False), ("stepping", False)],
)
def test_statistics_of_a_frozen_scaffold_stay_unless_asked(
    model: str, update_statistics: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_experiment(config(model, tmp_path, update_statistics=update_statistics))
    assert moved(tmp_path / "001") == {"body_norm": update_statistics, "norm": True}
    what = "follow the training data" if update_statistics else "stay as they are"
    assert f"the statistics of 1 batch-norm layer {what}" in capsys.readouterr().out
