"""How optimizers of TensorFlow 1 update variables, one at a time and with any learning rate.

Their subclasses implement the methods that are called here, and only `apply_gradients` calls them
otherwise, which updates all variables with one learning rate. Nothing public does less.
`tests/unit/graph/test_run_optimizer.py` compares the updates with those of a graph, and fails when
TensorFlow changes any of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf


def create_tensorflow1_slots(
    optimizer: tf.compat.v1.train.Optimizer, variables: Sequence[tf.Variable]
) -> None:
    """Creates the slots of variables, and what the optimizer keeps once."""
    with tf.init_scope():
        optimizer._create_slots(list(variables))


def apply_tensorflow1(
    optimizer: tf.compat.v1.train.Optimizer, gradient: Any, variable: tf.Variable
) -> None:
    """Updates one variable and its slots."""
    optimizer._prepare()
    if isinstance(gradient, tf.IndexedSlices):
        optimizer._resource_apply_sparse_duplicate_indices(
            gradient.values, variable, gradient.indices
        )
    else:
        optimizer._resource_apply_dense(gradient, variable)


def finish_tensorflow1(optimizer: tf.compat.v1.train.Optimizer) -> None:
    """Updates what an optimizer keeps once, after all variables."""
    optimizer._finish([], f"{optimizer.get_name()}_finish")


def state_of_tensorflow1(
    optimizer: tf.compat.v1.train.Optimizer, trained: Mapping[str, tf.Variable]
) -> Iterator[tuple[tf.Variable, str]]:
    """Yields the variables of an optimizer with the names that a graph of TensorFlow 1 gives them.

    Args:
      optimizer: the optimizer.
      trained: name -> variable, of those that it trains.
    """
    for variable in optimizer._non_slot_variables():  # `variables()` has the slots too.
        yield variable, _numbered(variable)[0]
    for name, variable in trained.items():
        slots = [optimizer.get_slot(variable, slot) for slot in optimizer.get_slot_names()]
        # A process numbers all slots of variables that share a name; these are in their order.
        created = sorted((slot for slot in slots if slot is not None), key=_numbered)
        for number, slot in enumerate(created):
            yield slot, f"{name}/{_numbered(slot)[0]}" + (f"_{number}" if number else "")


def _numbered(variable: tf.Variable) -> tuple[str, int]:
    """Returns the last part of a variable's name without its number, and the number."""
    name, _, number = variable.name.rpartition("/")[2].partition(":")[0].rpartition("_")
    return (name, int(number)) if number.isdigit() else (f"{name}_{number}".lstrip("_"), 0)
