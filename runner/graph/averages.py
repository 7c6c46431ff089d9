"""Moving averages of weights, which evaluations and exports may use in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import tensorflow as tf

from runner.planning.variables import EMA_SUFFIX


class AveragedWeights:
    """Moving averages of weights, which can change places with them.

    Attributes:
      are_final: whether any average replaces its weight at the end of training.

    Args:
      pairs: weights and their averages.
      final: those whose averages replace the weights at the end of training.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[tf.Variable, tf.Variable]],
        final: Sequence[tuple[tf.Variable, tf.Variable]] = (),
    ) -> None:
        # Outside of the control dependencies of the update, which waits for the train op.
        with tf.control_dependencies(None), tf.name_scope("swap_averages"):
            values = [(tf.identity(weight), tf.identity(average)) for weight, average in pairs]
            with tf.control_dependencies(tf.nest.flatten(values)):
                assignments = [
                    (weight.assign(average_value), average.assign(weight_value))
                    for (weight, average), (weight_value, average_value) in zip(
                        pairs, values, strict=True
                    )
                ]
            self._swap = tf.group(*tf.nest.flatten(assignments))
            self._replace = tf.group(*(weight.assign(average) for weight, average in final))
        self.are_final = bool(final)

    def replace(self, session: tf.compat.v1.Session) -> None:
        """Gives the weights the values of their averages."""
        session.run(self._replace)

    @contextmanager
    def in_place(self, session: tf.compat.v1.Session) -> Iterator[None]:
        """Swaps the averages and the weights within the block."""
        session.run(self._swap)
        try:
            yield
        finally:
            session.run(self._swap)


def averaged_names(variables: Mapping[str, tf.Variable], checkpoint: str) -> dict[str, tf.Variable]:
    """Returns tensor name -> variable, with the checkpoint's averages where it has them."""
    saved = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    return {
        f"{name}{EMA_SUFFIX}" if f"{name}{EMA_SUFFIX}" in saved else name: variable
        for name, variable in variables.items()
    }
