"""Keras still has what is private and used: where these fail, look there first."""

from __future__ import annotations

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.saving import saving_lib

from runner.errors import InterruptedRunError
from runner.internals.keras import (
    add_losses,
    flattened_map,
    hand_over_losses,
    layers_of,
    mask_of,
    metrics_of,
    recorded_calls,
    replaced_moments,
    restored_names,
    saved_groups,
    seeds_of,
    set_mask,
    slots_of,
    spares_weights,
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


def test_which_weights_do_not_decay() -> None:
    optimizer = keras.optimizers.AdamW()
    assert not spares_weights(optimizer)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert spares_weights(optimizer)


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


def test_losses_of_a_call_within_a_stateless_scope() -> None:
    with tf.Graph().as_default():
        layer = keras.layers.ActivityRegularization(l2=1.0)
        layer(tf.ones((1, 2)))
        assert len(layer.losses) == 1
        with keras.StatelessScope() as scope:
            assert not layer.losses, "nothing need be handed over"
            hand_over_losses(layer, scope)
            assert len(layer.losses) == 1


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


def test_what_a_call_on_several_devices_needs() -> None:
    lossy = keras.layers.ActivityRegularization(l1=1.0)
    dropout = keras.layers.Dropout(0.5)
    norm = keras.layers.BatchNormalization(momentum=0.0)
    model = keras.Sequential([keras.Input((2,)), lossy, dropout, norm])
    assert seeds_of(model) == [dropout.seed_generator.state]
    with replaced_moments(lambda original, layer, inputs, mask: (tf.ones(2), 4 * tf.ones(2))):
        outputs = model(tf.ones((3, 2)), training=True)
    assert norm.moving_variance.numpy().tolist() == [4.0, 4.0]
    assert len(model.losses) == 1
    add_losses(model, [tf.constant(5.0)])
    assert [float(loss) for loss in model.losses] == [5.0]
    assert mask_of(outputs) is None
    set_mask(outputs, tf.constant([True, False, True]))
    assert mask_of(outputs) is not None
