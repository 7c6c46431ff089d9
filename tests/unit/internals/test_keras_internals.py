"""Keras still has what is private and used: where these fail, look there first."""

from __future__ import annotations

import signal

import keras
import numpy as np
import pytest
from keras.src.saving import saving_lib

from runner.errors import InterruptedRunError
from runner.internals.keras import (
    flattened_map,
    layers_of,
    metrics_of,
    recorded_calls,
    restored_names,
    saved_groups,
    slots_of,
)


def test_where_keras_saves_variables() -> None:
    inner = keras.Sequential([keras.layers.Dense(2, name="one")], name="inner")
    layers = [keras.Input((3,)), inner, keras.layers.Dense(2, name="two")]
    model = keras.Sequential(layers, name="sequential")  # Keras counts the names that it gives.
    model.compile("adam")
    groups = saved_groups(model)
    variables = {
        group: (name, [variable.path for variable in held.values()])
        for group, (name, held) in groups.items()
        if held
    }
    assert variables == {
        "layers/sequential/layers/dense": (
            "one",
            [f"sequential/inner/one/{leaf}" for leaf in ("kernel", "bias")],
        ),
        "layers/dense": ("two", ["sequential/two/kernel", "sequential/two/bias"]),
    }
    assert [*groups["layers/dense"][1]] == ["0", "1"]
    assert {"inner", "two", "one"} <= {layer.name for layer in layers_of(model)}
    # Keras finds what `saved_groups` keeps for it.
    assert saving_lib.get_attr_skipset("Layer") is saving_lib.get_attr_skipset("Layer")


def test_the_metrics_that_compile_makes() -> None:
    class Own(keras.Sequential):
        metrics = ()

    model = Own([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert [type(metric).__name__ for metric in metrics_of(model)] == ["Mean", "CompileMetrics"]
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.Recall()])
    assert [type(metric).__name__ for metric in metrics_of(model)][2:] == ["Recall"]


def test_which_slots_an_optimizer_keeps_for_a_variable() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="one")], name="net")
    kernel, bias = model.trainable_variables
    names = {}
    muon = hasattr(keras.optimizers, "Muon")  # Not in Keras 3.8.
    for name in ("Adam", "Adafactor", *(["Muon"] if muon else [])):
        optimizer = getattr(keras.optimizers, name)(use_ema=name == "Adam")
        optimizer.build([kernel, bias])
        slots = list(slots_of(optimizer))
        assert {id(slot.variable) for slot in slots} < {id(state) for state in optimizer.variables}
        names[name] = {
            side: [slot.name for slot in slots if slot.trained is variable]
            for side, variable in (("kernel", kernel), ("bias", bias))
        }
    adam, adafactor = ["average", "momentum", "velocity"], ["r", "c", "velocity"]
    assert names["Adam"] == {"kernel": adam, "bias": adam}
    assert names["Adafactor"] == {"kernel": adafactor, "bias": adafactor}
    if muon:
        assert names["Muon"] == {"kernel": ["momentum"], "bias": ["momentum", "velocity"]}


def test_a_signal_inside_a_keras_call_stays_one() -> None:
    class Interrupted(keras.layers.Layer):
        def call(self, x: object) -> object:
            raise InterruptedRunError(signal.SIGTERM)

    with pytest.raises(InterruptedRunError) as caught:
        Interrupted()(np.ones([1]))
    assert caught.value.exit_code == 143
    assert str(caught.value) == str(InterruptedRunError(signal.SIGTERM))


def test_the_first_call_of_every_layer_is_recorded() -> None:
    inner = keras.Sequential([keras.layers.Dense(2, use_bias=False, name="one")], name="inner")
    image = keras.Input((3,))
    model = keras.Model(image, inner(inner.layers[0](image)[:, :1] * keras.ops.ones((1, 3))))
    before = keras.Layer.__call__
    with recorded_calls() as calls:
        model(np.ones((1, 3), np.float32))
    assert keras.Layer.__call__ is before
    (argument,) = calls[id(inner.layers[0])].arguments
    np.testing.assert_array_equal(argument, np.ones((1, 3)))
    assert {id(layer) for layer in layers_of(model)} >= calls.keys() >= {id(model), id(inner)}


def test_the_names_before_a_cleared_session_come_back() -> None:
    keras.utils.clear_session()
    assert keras.layers.Dense(1).name == "dense"
    with restored_names():
        keras.utils.clear_session()
        assert keras.layers.Dense(1).name == "dense"
    assert keras.layers.Dense(1).name == "dense_1"


def test_the_map_that_a_flatten_before_a_layer_reads() -> None:
    layers = keras.layers
    inputs = keras.Input((4, 4, 3))
    flat = layers.Dropout(0.5)(layers.Flatten()(layers.Conv2D(2, 3)(inputs)))
    first, second, alone = layers.Dense(3), layers.Dense(3), layers.Dense(3)
    second(first(flat))
    alone.build((None, 3))
    assert [flattened_map(layer) for layer in (first, second, alone)] == [(2, 2, 2), (), ()]
    pooled = layers.Dense(3)
    pooled(layers.Flatten()(layers.GlobalAveragePooling2D(keepdims=True)(inputs)))
    assert flattened_map(pooled) == ()
