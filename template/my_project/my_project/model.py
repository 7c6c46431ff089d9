"""The model: `body` turns a point into features, `head` classifies them.

Scaffolds select variables by these names: `body/dense1/kernel`, ..., `head/bias`.
"""

import keras
import tensorflow as tf


class Classifier(keras.Model):
    """Maps points, float32 [batch, 2], to logits, float32 [batch, classes].

    Args:
      classes: how many classes there are.
      units: size of the hidden layers.
    """

    def __init__(self, classes: int, units: int) -> None:
        super().__init__()
        hidden = [keras.layers.Dense(units, "relu", name=f"dense{n}") for n in (1, 2)]
        self.body = keras.Sequential(hidden, name="body")
        self.head = keras.layers.Dense(classes, name="head")

    def call(self, points: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits."""
        return self.head(self.body(points, training=training))
