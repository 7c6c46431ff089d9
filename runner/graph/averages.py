"""Moving averages of weights, and how to look at the model with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import tensorflow as tf

# How `tf.train.ExponentialMovingAverage` names the average of a variable.
SUFFIX = "/ExponentialMovingAverage"


class AveragedWeights:
    """Keeps `tf.train.ExponentialMovingAverage`s, which can change places with their weights."""

    def __init__(
        self, weights: Sequence[tf.Variable], decay: float, global_step: tf.Tensor | None = None
    ) -> None:
        """Adds the averages to the graph.

        Args:
          weights: the variables to average.
          decay: how much of an average each update keeps.
          global_step: makes the averages follow sooner at the start, by a decay of at most
            (1 + step) / (10 + step); None decays alike at all times.
        """
        averages = tf.train.ExponentialMovingAverage(decay, num_updates=global_step)
        self.update: tf.Operation = averages.apply(weights)
        pairs = [(each, averages.average(each)) for each in weights]
        # Apart from what the update waits for, which is the train op.
        with tf.control_dependencies(None), tf.name_scope("swap_averages"):
            values = [(tf.identity(one), tf.identity(other)) for one, other in pairs]
            with tf.control_dependencies(tf.nest.flatten(values)):
                assigned = [
                    (weight.assign(average), kept.assign(value))
                    for (weight, kept), (value, average) in zip(pairs, values, strict=True)
                ]
            self._swap = tf.group(*tf.nest.flatten(assigned))

    @contextmanager
    def in_place(self, session: tf.compat.v1.Session) -> Iterator[None]:
        """Puts the averages in the weights' place for a while, and the weights in theirs."""
        session.run(self._swap)
        try:
            yield
        finally:
            session.run(self._swap)


def averaged_names(variables: Mapping[str, tf.Variable], checkpoint: str) -> dict[str, tf.Variable]:
    """Returns tensor name -> variable, with the checkpoint's averages where it has them."""
    known = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    return {
        f"{name}{SUFFIX}" if f"{name}{SUFFIX}" in known else name: variable
        for name, variable in variables.items()
    }
