"""The model: `body` turns a point into features, `head` classifies them.

Scaffolds select variables by these names: `body/dense1/kernel`, ..., `head/bias`.
"""

import keras


def classifier(classes: int, units: int) -> keras.Model:
    """Returns a model that maps points, float32 [batch, 2], to logits, float32 [batch, classes].

    Args:
      classes: how many classes there are.
      units: size of the hidden layers.
    """
    hidden = [keras.layers.Dense(units, "relu", name=f"dense{n}") for n in (1, 2)]
    body = keras.Sequential(hidden, name="body")
    points = keras.Input((2,), name="points")
    return keras.Model(points, keras.layers.Dense(classes, name="head")(body(points)))
