"""A run's graph computes what `keras.Model.fit` computes: losses, metrics, weights and slots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import pytest
import tensorflow as tf

from runner.config.schema import ClipConfig, TrainConfig
from runner.errors import UserCodeError
from runner.internals.tensorflow import is_op_determinism_enabled
from tests.samples.combinations import LOSSES, OPTIMIZERS, adds_loss, arrays, combined
from tests.samples.constructs import CONSTRUCTS
from tests.support.fitted import (
    BATCH,
    EPOCHS,
    LENGTH,
    Program,
    assert_as_in_fit,
    assert_equal,
    by_fit,
    by_run,
)

Combination = tuple[str, ...]
# The optimizer, the form of the loss, and settings.
FAST: tuple[Combination, ...] = (
    ("adamw", "dict", "metrics", "weights"),
    ("accumulating averages", "compute_loss", "mixed_float16"),
)
SETTINGS: tuple[Combination, ...] = (
    (),
    ("metrics",),
    ("metrics", "weights"),
    ("mixed_float16", "weights"),
    ("mixed_bfloat16", "metrics"),
    ("classes", "metrics"),
)


def combinations() -> Iterator[Combination]:
    """Yields every optimizer with every form of the loss, and every form with every setting."""
    for number, optimizer in enumerate(OPTIMIZERS):
        for shift, loss in enumerate(LOSSES):
            settings = SETTINGS[(number + shift) % len(SETTINGS)]
            yield (optimizer, loss, *settings)
    for loss in LOSSES:
        for settings in (*SETTINGS, ("xla", "metrics")):
            yield ("adam", loss, *settings)


def valid() -> list[Any]:
    soaked = dict.fromkeys(
        each
        for each in combinations()
        # As in Keras, class weights are for one label.
        if each not in FAST and not ("classes" in each and each[1] in ("list", "dict"))
    )
    return [*FAST, *(pytest.param(each, marks=pytest.mark.soak) for each in soaked)]


@pytest.mark.parametrize("parts", valid(), ids=" + ".join)
def test_optimizers_losses_and_settings(parts: Combination) -> None:
    if "xla" in parts and is_op_determinism_enabled():
        pytest.skip("Keras uses no XLA with TF_DETERMINISTIC_OPS=1, and says so")
    assert_as_in_fit(combined(*parts))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_losses_of_two_dtypes_are_added_up_where_fit_adds_them_up(dtype: str) -> None:
    """Keras 3.6 converts a loss of half precision to float32, Keras 3.15 refuses to."""

    def model() -> keras.Model:
        model = adds_loss(cast=False)
        model.compile(loss="mse", jit_compile=False)
        return model

    program = Program(model, _data, policy=f"mixed_{dtype}")
    try:
        fitted = by_fit(program)
    except TypeError as error:
        reason, _, _ = str(error).partition(" (Tensor is: ")
        with pytest.raises(UserCodeError, match=re.escape(f"loss raised TypeError: {reason}")):
            by_run(program)
    else:
        assert_equal(by_run(program), fitted)


FAST_CONSTRUCTS = ("labels compared in a loss", "text vectors")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST_CONSTRUCTS else pytest.param(name, marks=pytest.mark.soak)
        for name in CONSTRUCTS
    ],
)
def test_constructs(name: str) -> None:
    assert_as_in_fit(CONSTRUCTS[name])


def _net(**compiled: Any) -> keras.Model:
    """A model without state of its own."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(8, "tanh", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", name="sign")(hidden))
    if compiled:
        model.compile(jit_compile=False, **compiled)
    return model


def _data(size: int = BATCH) -> tf.data.Dataset:
    known = arrays()
    slices = tf.data.Dataset.from_tensor_slices((known["features"], known["sign"]))
    return slices.batch(size)


def _train(**settings: Any) -> TrainConfig:
    return TrainConfig(epochs=EPOCHS, steps_per_epoch=LENGTH, **settings)


def _adam(**settings: Any) -> dict[str, Any]:
    return {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01, **settings}


def _metric(name: str) -> dict[str, Any]:
    return {"_target_": f"keras.metrics.{name}"}


# What is compiled for `fit` -> the fields of the configuration that say the same.
CONFIGURED: dict[str, tuple[Any, dict[str, Any]]] = {
    "loss and metrics": (
        lambda: {
            "optimizer": keras.optimizers.Adam(0.01),
            "loss": "bce",
            "metrics": ["accuracy", keras.metrics.AUC(name="area")],
            "weighted_metrics": [keras.metrics.MeanMetricWrapper(keras.losses.hinge, "far")],
        },
        {
            "loss": "bce",
            "optimizer": _adam(),
            "metrics": {"accuracy": "accuracy", "area": _metric("AUC")},
            "weighted_metrics": {
                "far": {"_target_": "keras.metrics.hinge", "_partial_": True}
            },
        },
    ),
    "averages": (
        lambda: {
            "optimizer": keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5),
            "loss": "mse",
        },
        {"loss": "mse", "optimizer": _adam(), "train": _train(ema_decay=0.5)},
    ),
    "clipping": (
        lambda: {"optimizer": keras.optimizers.Adam(0.01, clipvalue=1e-3), "loss": "mse"},
        {"loss": "mse", "optimizer": _adam(), "train": _train(clip=ClipConfig(value=1e-3))},
    ),
    "a schedule": (
        lambda: {
            "optimizer": keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)),
            "loss": "mse",
        },
        {
            "loss": "mse",
            "optimizer": _adam(
                learning_rate={
                    "_target_": "keras.optimizers.schedules.CosineDecay",
                    "initial_learning_rate": 0.1,
                    "decay_steps": 5,
                }
            ),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_configuration_compiles_as_its_arguments_would(name: str) -> None:
    compiled, fields = CONFIGURED[name]
    assert_as_in_fit(Program(lambda: _net(**compiled()), _data, config=fields, plain=_net))


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("averages", marks=pytest.mark.soak)])
def test_accumulated_batches_are_one_larger_batch(optimizer: str) -> None:
    program = Program(
        lambda: _net(optimizer=OPTIMIZERS[optimizer](), loss="mse", metrics=["mae"]), _data
    )
    halves = replace(
        program, data=lambda: _data(BATCH // 2), config={"train": _train(accumulate=2)}
    )
    parts, whole = by_run(halves), by_fit(program)
    # A metric counts the batches, of which there are twice as many.
    parts.state, whole.state = (
        [(path, value) for path, value in outcome.state if "total" not in path]
        for outcome in (parts, whole)
    )
    assert_equal(parts, whole, 1e-5)


def test_a_gradient_that_is_not_finite_lowers_the_loss_scale_as_in_fit() -> None:
    def scaled() -> keras.Model:
        inner = keras.optimizers.SGD(0.05)
        scale = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)
        return _net(optimizer=scale, loss="mse")

    assert_as_in_fit(Program(scaled, _data, config={"train": _train()}))
