"""The values of a session in the model that its steps were traced from, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.graph.stored_values import StoredValues
from runner.internals.keras import finalize
from runner.internals.tensorflow import assign_in_session, free_in_session, give
from runner.planning.optimizer_slots import LEARNING_RATE

OUTSIDE = "program/"
"""Begins the names of variables that steps use and that the model does not track."""

# Smaller variables are not worth the trouble.
_LARGE = 1024
# The bytes that a session hands over at once: what it fetches is there twice for a moment, and each
# part needs a run of its own.
_PART = 2**26


class ModelValues:
    """Exchanges values between a session and a model outside of it.

    Args:
      model: the model.
      pairs: name -> variable of the session, and the model's, of its optimizers or its metrics.
      stored: the model's values, some of which may be in a file; a session initialises itself
        with them.

    Attributes:
      model: the model.
    """

    def __init__(
        self,
        model: keras.Model,
        pairs: Mapping[str, tuple[tf.Variable, tf.Variable]],
        stored: StoredValues,
    ) -> None:
        self.model, self._pairs, self._stored = model, dict(pairs), stored
        # Counters and rates, see `pull`.
        self._light = [
            name
            for name, (_, variable) in self._pairs.items()
            if name.endswith((LEARNING_RATE, "/iterations")) and variable.shape.rank == 0
        ]
        # Name -> the value of the session that the model took.
        self._taken: dict[str, NDArray[Any]] = {}

    def forget(self) -> None:
        """Notes that the session has other values."""
        self._taken = {}

    def free(self, file: IO[bytes]) -> None:
        """Moves large values of the model into a file.

        The model has them again when `give_back` is called, or with the session's values.
        """
        self.forget()
        self._stored.store(
            [
                variable
                for name, (_, variable) in self._pairs.items()
                if is_large(variable) and not name.startswith(OUTSIDE)
            ],
            file,
        )

    def give_back(self) -> None:
        """Gives the model the values from before `free` where it has none."""
        self._stored.give_back()

    def hand_over(self, session: tf.compat.v1.Session) -> None:
        """Gives the model all values of the session, which is of no more use afterwards."""
        self.forget()
        for names in self._parts():
            self._pull(session, names)
            held = [self._pairs[name] for name in names]
            free_in_session(session, [variable for variable, eager in held if is_large(eager)])
        finalize(self.model)

    def _parts(self) -> Iterator[list[str]]:
        """Yields the names of variables that are handed over together."""
        names, size = list[str](), 0
        for name, (_, variable) in self._pairs.items():
            names.append(name)
            size += variable.shape.num_elements() * variable.dtype.size
            if size >= _PART:
                yield names
                names, size = [], 0
        yield names

    def pull(self, session: tf.compat.v1.Session, *, weights: bool) -> None:
        """Takes values of the session that it does not have yet: counters and rates, or all."""
        names = self._pairs if weights else self._light
        self._taken |= self._pull(session, [name for name in names if name not in self._taken])
        if weights:
            finalize(self.model)

    def _pull(self, session: tf.compat.v1.Session, names: Sequence[str]) -> dict[str, Any]:
        values = session.run([self._pairs[name][0] for name in names]) if names else []
        for name, value in zip(names, values, strict=True):
            give(self._pairs[name][1], value)
        return dict(zip(names, values, strict=True))

    def push(self, session: tf.compat.v1.Session) -> bool:
        """Gives the session what callbacks have changed; returns whether that is anything."""
        changed = {}
        for name, taken in self._taken.items():
            value = self._pairs[name][1].numpy()
            if not _is_same(value, taken):
                changed[name] = value
        assign_in_session(
            session, ((self._pairs[name][0], value) for name, value in changed.items())
        )
        self._taken |= changed
        return bool(changed)


def is_large(variable: tf.Variable) -> bool:
    """Returns whether it saves memory to free the value of an eager variable."""
    return bool(variable.shape.num_elements() >= _LARGE and variable.dtype.is_floating)


def _is_same(value: Any, other: Any) -> bool:
    one, two = np.ravel(value), np.ravel(other)
    if one.dtype.kind in "OS":
        return np.array_equal(one, two)
    # By their bytes, as NaN differs from itself.
    return np.array_equal(one.view(np.uint8), two.view(np.uint8))
