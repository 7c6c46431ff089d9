"""The names of a model's variables, and of their initializers."""

from __future__ import annotations

import keras

from runner.planning.model_variables import initializers


def test_initializers_are_named_also_where_two_parts_share_names() -> None:
    image = keras.Input((4,), name="image")
    parts = []
    for name in ("left", "right"):
        part = keras.Model(image, keras.layers.Dense(2, name="dense")(image))
        part.name = name
        parts.append(part(image))
    joined = keras.layers.Concatenate()(parts)
    recurrent = keras.layers.LSTM(2, name="lstm")(keras.layers.Reshape((2, 2))(joined))
    named = initializers(keras.Model(image, recurrent))
    assert {name.split("/", 1)[0] for name in named} == {"left", "right", "lstm"}
    assert {name.rpartition("/")[2]: value for name, value in named.items()} == {
        "kernel": "GlorotUniform",
        "recurrent_kernel": keras.initializers.Orthogonal.__name__,
        "bias": "Zeros, forget gate 1",
    }
