"""The values of a session in the model that its steps were traced from, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.internals.keras import finalize
from runner.internals.tensorflow import (
    array_of_tensor,
    assign_in_session,
    eager_mode,
    free,
    free_in_session,
    give,
    is_freed,
)
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

    Attributes:
      model: the model.
    """

    def __init__(
        self, model: keras.Model, pairs: Mapping[str, tuple[tf.Variable, tf.Variable]]
    ) -> None:
        self.model, self._pairs = model, dict(pairs)
        # Counters and rates, see `pull`.
        self._light = [
            name
            for name, (_, variable) in self._pairs.items()
            if name.endswith((LEARNING_RATE, "/iterations")) and variable.shape.rank == 0
        ]
        # Name -> the value of the session that the model took.
        self._taken: dict[str, NDArray[Any]] = {}
        self._freed: list[tf.Variable] = []
        self._file: IO[bytes] | None = None

    def forget(self) -> None:
        """Notes that the session has other values."""
        self._taken = {}

    def free(self, file: IO[bytes]) -> None:
        """Moves large values of the model, which a session has by now, into a file.

        The model has them again when `give_back` is called, or with the session's values.
        """
        self.forget()
        with eager_mode():
            self._freed = [
                variable
                for name, (_, variable) in self._pairs.items()
                if is_large(variable) and not name.startswith(OUTSIDE) and not is_freed(variable)
            ]
            self._file = file
            for variable in self._freed:
                array_of_tensor(variable.read_value()).tofile(file)
                free(variable)

    def give_back(self) -> None:
        """Gives the model the values from before `free` where it has none."""
        if self._file is None:
            return
        self._file.seek(0)
        with eager_mode():
            for variable in self._freed:
                dtype, shape = variable.dtype.as_numpy_dtype, variable.shape
                value = np.fromfile(self._file, dtype, shape.num_elements())
                if is_freed(variable):
                    give(variable, value.reshape(shape))

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
            # By their bytes, as NaN differs from itself.
            if not np.array_equal(np.ravel(value).view(np.uint8), np.ravel(taken).view(np.uint8)):
                changed[name] = value
        assign_in_session(
            session, ((self._pairs[name][0], value) for name, value in changed.items())
        )
        self._taken |= changed
        return bool(changed)


def is_large(variable: tf.Variable) -> bool:
    """Returns whether it saves memory to free the value of an eager variable."""
    return bool(variable.shape.num_elements() >= _LARGE and variable.dtype.is_floating)
