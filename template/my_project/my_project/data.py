"""The data: points on the arms of a spiral."""

import numpy as np
import tensorflow as tf


class Spirals:
    """Points in a plane, labelled with their arm: float32 [batch, 2] and int32 [batch].

    Args:
      arms: how many arms the spiral has.
      batch_size: points per batch.
      seed: decides the order of the training points.
    """

    def __init__(self, arms: int, batch_size: int, seed: int) -> None:
        self.arms, self.batch_size, self.seed = arms, batch_size, seed

    def train(self) -> tf.data.Dataset:
        """Returns batches without end, in a new order each time."""
        points = self._points(900, seed=1)
        return points.shuffle(900, seed=self.seed).repeat().batch(self.batch_size)

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over points that training has not seen."""
        return self._points(300, seed=2).batch(self.batch_size)

    def test(self) -> tf.data.Dataset:
        """Returns one pass over points that are in neither of the other splits."""
        return self._points(300, seed=3).batch(self.batch_size)

    def _points(self, count: int, seed: int) -> tf.data.Dataset:
        random = np.random.default_rng(seed)
        arm, radius = random.integers(self.arms, size=count), random.uniform(0.1, 1.0, size=count)
        angle = 2 * np.pi * (radius + arm / self.arms)
        points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        points += random.normal(scale=0.02, size=points.shape)
        return tf.data.Dataset.from_tensor_slices((points.astype("float32"), arm.astype("int32")))
