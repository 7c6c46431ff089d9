"""An optimizer of TensorFlow 1 as one of Keras, for steps that Keras traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from runner.internals import tensorflow1_optimizers as internals


class TensorFlow1Optimizer(keras.optimizers.Optimizer):
    """Updates variables by an optimizer of TensorFlow 1.

    Gradients, clipping, the learning rate and its schedule are handled as for any optimizer of
    Keras; slots and updates are TensorFlow's.

    Args:
      make: makes the optimizer; its argument is the learning rate, which becomes a tensor of the
        variable that is being updated.
      learning_rate: a number, a Keras schedule, or a function without arguments, as the decays of
        `tf.compat.v1.train` return it eagerly.
      has_rate: whether the optimizer uses the learning rate.

    Attributes:
      has_rate: likewise.
      optimizer: the optimizer of TensorFlow 1.
    """

    def __init__(
        self,
        make: Callable[[Any], tf.compat.v1.train.Optimizer],
        learning_rate: Any = 0.0,
        *,
        has_rate: bool = True,
    ) -> None:
        super().__init__(learning_rate=learning_rate)
        self.has_rate = has_rate
        self._trained: list[tf.Variable] = []
        self._rate = _CurrentRate()
        self.optimizer = make(self._rate)
        self.name = self.optimizer.get_name()

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots."""
        super().build(variables)
        self._trained = [_value(variable) for variable in variables]
        internals.create_tensorflow1_slots(self.optimizer, self._trained)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        self._rate.value = learning_rate
        internals.apply_tensorflow1(self.optimizer, gradient, _value(variable))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Updates the variables, and what the optimizer keeps once for all of them."""
        super().apply(grads, trainable_variables)
        internals.finish_tensorflow1(self.optimizer)

    def state(self, owner: Callable[[tf.Variable], str]) -> Iterator[tuple[tf.Variable, str]]:
        """Yields TensorFlow's variables, and their names in checkpoints of TensorFlow 1.

        `owner` returns the name of a variable that the optimizer trains.
        """
        trained = {owner(variable): variable for variable in self._trained}
        yield from internals.state_of_tensorflow1(self.optimizer, trained)


class _CurrentRate:
    """A value that TensorFlow converts in every update; not all optimizers take a function."""

    value: Any = 0.0

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype, name=name)


def _value(variable: Any) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else variable.value
