"""An optimizer of TensorFlow 1 as one of Keras, for steps that Keras traces.

Optimizers of TensorFlow 1 implement private methods that update one variable, and only
`apply_gradients` calls them otherwise, which updates all variables with one learning rate. Nothing
public does less. `tests/unit/graph/test_run_optimizer.py` compares the updates with a
graph's, and fails when TensorFlow changes any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


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
        """Creates the slots, and what the optimizer keeps once."""
        super().build(variables)
        self._trained = [_value(variable) for variable in variables]
        with tf.init_scope():
            self.optimizer._create_slots(list(self._trained))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its slots."""
        self._rate.value = learning_rate
        self.optimizer._prepare()
        if isinstance(gradient, tf.IndexedSlices):
            self.optimizer._resource_apply_sparse_duplicate_indices(
                gradient.values, _value(variable), gradient.indices
            )
        else:
            self.optimizer._resource_apply_dense(gradient, _value(variable))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Updates the variables, and what the optimizer keeps once for all of them."""
        super().apply(grads, trainable_variables)
        self.optimizer._finish([], f"{self.name}_finish")

    def state(self, owner: Callable[[tf.Variable], str]) -> Iterator[tuple[tf.Variable, str]]:
        """Yields TensorFlow's variables, and their names in checkpoints of TensorFlow 1.

        `owner` returns the name of a variable that the optimizer trains.
        """
        optimizer = self.optimizer
        for variable in optimizer._non_slot_variables():  # `variables()` has the slots too.
            yield variable, _numbered(variable)[0]
        for trained in self._trained:
            slots = [optimizer.get_slot(trained, slot) for slot in optimizer.get_slot_names()]
            # A process numbers all slots of variables that share a name; these are in their order.
            created = sorted((slot for slot in slots if slot is not None), key=_numbered)
            for number, slot in enumerate(created):
                name = f"{owner(trained)}/{_numbered(slot)[0]}"
                yield slot, name + (f"_{number}" if number else "")


class _CurrentRate:
    """A value that TensorFlow converts in every update; not all optimizers take a function."""

    value: Any = 0.0

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype, name=name)


def _value(variable: Any) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else variable.value


def _numbered(variable: tf.Variable) -> tuple[str, int]:
    """Returns the last part of a variable's name without its number, and the number."""
    name, _, number = variable.name.rpartition("/")[2].partition(":")[0].rpartition("_")
    return (name, int(number)) if number.isdigit() else (f"{name}_{number}".lstrip("_"), 0)
