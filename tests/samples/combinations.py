"""Optimizers, forms of the loss and settings of programs, to be combined with one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.support.fitted import BATCH, EXAMPLES, Program

Make = Callable[[], Any]
_KERAS = keras.optimizers

OPTIMIZERS: Mapping[str, Make] = {
    "sgd": lambda: _KERAS.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: _KERAS.Adam(0.01, amsgrad=True),
    "adamw": lambda: _KERAS.AdamW(0.01, weight_decay=0.1),
    "lion": lambda: _KERAS.Lion(0.01, weight_decay=0.1),
    "adafactor": lambda: _KERAS.Adafactor(0.01),
    "nadam": lambda: _KERAS.Nadam(0.01),
    "ftrl": lambda: _KERAS.Ftrl(0.05, l1_regularization_strength=0.01),
    "rmsprop": lambda: _KERAS.RMSprop(0.01, momentum=0.9, centered=True),
    "loss scale": lambda: _KERAS.LossScaleOptimizer(
        _KERAS.SGD(0.05, momentum=0.9), initial_scale=1024.0, dynamic_growth_steps=2
    ),
    "averages": lambda: _KERAS.Adam(0.01, use_ema=True, ema_momentum=0.5),
    "averages that overwrite": lambda: _KERAS.SGD(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulating": lambda: _KERAS.AdamW(0.01, gradient_accumulation_steps=2),
    "accumulating averages": lambda: _KERAS.Lion(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=4
    ),
    "norms": lambda: _KERAS.Adam(0.01, clipnorm=0.05),
    "global norm": lambda: _KERAS.SGD(0.05, global_clipnorm=0.05),
    "values": lambda: _KERAS.SGD(0.05, clipvalue=0.01, loss_scale_factor=4.0),
    "schedule": lambda: _KERAS.AdamW(
        _KERAS.schedules.CosineDecay(1e-3, 8, warmup_target=0.01, warmup_steps=2),
        global_clipnorm=0.1,
    ),
} | {
    name.lower(): lambda name=name: getattr(_KERAS, name)(0.01)
    for name in ("Muon", "Lamb")
    if hasattr(_KERAS, name)
}  # fmt: skip


def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(EXAMPLES, 8)).astype(np.float32)
    return {
        "features": features,
        "sign": (features[:, :1] > 0).astype(np.float32),
        "size": features[:, 1:3] * 2.0,
        "weights": generator.uniform(0.0, 2.0, EXAMPLES).astype(np.float32),
    }


def _hidden(inputs: Any) -> Any:
    """Returns a hidden layer, without the bias that the normalization would take away again.

    The gradient of such a bias is 0 but for rounding errors, which Adam scales to whole steps.
    """
    regularizer = keras.regularizers.L2(0.01)
    hidden = layers.Dense(8, use_bias=False, kernel_regularizer=regularizer, name="hidden")(inputs)
    return layers.Dropout(0.2)(layers.Activation("tanh")(layers.BatchNormalization()(hidden)))


def _one() -> keras.Model:
    inputs = keras.Input((8,))
    return keras.Model(inputs, layers.Dense(1, "sigmoid", name="sign")(_hidden(inputs)))


def _two(*, named: bool) -> keras.Model:
    inputs = keras.Input((8,))
    hidden = _hidden(inputs)
    outputs = {
        "sign": layers.Dense(1, "sigmoid", name="sign")(hidden),
        "size": layers.Dense(2, name="size")(hidden),
    }
    return keras.Model(inputs, outputs if named else list(outputs.values()))


class Penalised(layers.Layer):
    """Adds a loss of what passes, by default of the dtype of the others, which Keras adds up."""

    def __init__(self, *, cast: bool = True) -> None:
        super().__init__()
        self.cast = cast

    def call(self, inputs: Any) -> Any:
        penalised = keras.ops.cast(inputs, "float32") if self.cast else inputs
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(penalised)))
        return inputs


def adds_loss(*, cast: bool = True) -> keras.Model:
    inputs = keras.Input((8,))
    hidden = Penalised(cast=cast)(_hidden(inputs))
    return keras.Model(inputs, layers.Dense(1, "sigmoid", name="sign")(hidden))


class ComputesLoss(keras.Model):
    """Computes its loss and one metric itself; labels are compared by `!=`, as by users."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _one()
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.inner(inputs, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        chosen = keras.ops.cast(y != 1.0, "float32") + 0.5
        loss = keras.ops.mean(chosen * keras.ops.square(y - keras.ops.cast(y_pred, "float32")))
        return loss + sum(self.losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.error.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result() | {"error": self.error.result()}


# Form -> the model, how it is compiled, and its metrics; the labels follow from the form.
LOSSES: Mapping[str, tuple[Make, Mapping[str, Any], Make]] = {
    "one": (
        _one,
        {"loss": "binary_crossentropy"},
        lambda: {
            "metrics": ["accuracy", keras.metrics.AUC(num_thresholds=20, name="auc")],
            "weighted_metrics": ["mae", "accuracy"],
        },
    ),
    "list": (
        lambda: _two(named=False),
        {"loss": ["binary_crossentropy", "mse"], "loss_weights": [1.0, 0.25]},
        lambda: {"metrics": [["accuracy"], ["mae", keras.metrics.RootMeanSquaredError()]]},
    ),
    "dict": (
        lambda: _two(named=True),
        {"loss": {"sign": "bce", "size": "huber"}, "loss_weights": {"sign": 0.5, "size": 2.0}},
        lambda: {"metrics": {"sign": ["accuracy"]}, "weighted_metrics": {"size": ["mse"]}},
    ),
    "add_loss": (
        adds_loss,
        {"loss": keras.losses.MeanSquaredError(reduction="sum")},
        lambda: {"metrics": [keras.metrics.BinaryIoU(dtype="float32", name="iou")]},
    ),
    "compute_loss": (ComputesLoss, {}, dict),
}

SETTINGS = ("metrics", "weights", "classes", "mixed_float16", "mixed_bfloat16", "xla")


def combined(optimizer: str, loss: str, *settings: str) -> Program:
    """Returns the program of an optimizer, a form of the loss and settings."""
    make, compiled, metrics = LOSSES[loss]
    xla = "xla" in settings

    def model() -> keras.Model:
        model = make()
        measured = metrics() if "metrics" in settings else {}
        model.compile(OPTIMIZERS[optimizer](), jit_compile=xla, **compiled, **measured)
        return model

    def data() -> tf.data.Dataset:
        known = arrays()
        labels: Any = known["sign"]
        weights: Any = known["weights"]
        if loss in ("list", "dict"):
            labels = {name: known[name] for name in ("sign", "size")}
            weights = {"sign": weights, "size": weights[::-1].copy()}
        if loss == "list":
            labels, weights = tuple(labels.values()), tuple(weights.values())
        batch: tuple[Any, ...] = (known["features"], labels, weights)
        batch = batch if "weights" in settings else batch[:2]
        return tf.data.Dataset.from_tensor_slices(batch).batch(BATCH)

    classes = {0: 0.5, 1: 3.0} if "classes" in settings else None
    return Program(
        model,
        data,
        fit={"class_weight": classes},
        config={"class_weight": classes} if classes else {},
        policy=next((name for name in settings if name.startswith("mixed")), "float32"),
        # XLA chooses the order of sums: measured are 2e-7, and 5e-7 of `fit` with and without it.
        tolerance=1e-6 if xla else 0.0,
    )
