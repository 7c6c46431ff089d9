"""The values of a session in the model that its steps were traced from, and back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from runner.planning.optimizer_state import learning_rates_of, optimizers_of
from runner.system.array_file import ArrayFile, Place

OUTSIDE = "program/"
"""Begins the names of variables that steps use and that the model does not track."""

# Smaller variables are not worth the trouble.
_LARGE = 1024
# The bytes that a session hands over at once: what it fetches is there twice for a moment, and each
# part needs a run of its own.
_PART = 2**26


class StoredValues:
    """The values of eager variables, of which some may be in a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # TensorFlow initialises variables in several threads.
        self._file: ArrayFile | None = None
        # The `id` of a variable -> the variable, and where its value is.
        self._places: dict[int, tuple[tf.Variable, Place]] = {}

    def store(self, variables: Iterable[tf.Variable], file: IO[bytes]) -> None:
        """Moves the values of variables that have one into a file."""
        self._file, self._places = ArrayFile(file), {}
        with eager_mode():
            for variable in variables:
                if is_freed(variable):
                    continue
                place = self._file.append(array_of_tensor(variable.read_value()))
                self._places[id(variable)] = variable, place
                free(variable)

    def value(self, variable: tf.Variable) -> NDArray[Any]:
        """Returns the value of a variable, from the file where the variable has none."""
        with eager_mode():
            if id(variable) not in self._places or not is_freed(variable):
                return array_of_tensor(variable.read_value())
        with self._lock:
            assert self._file is not None
            return self._file.read(self._places[id(variable)][1])

    def give_back(self) -> None:
        """Gives variables their values again where they have none."""
        with eager_mode():
            for variable, _ in self._places.values():
                if is_freed(variable):
                    give(variable, self.value(variable))


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


@contextmanager
def left_usable(model: keras.Model) -> Iterator[None]:
    """Gives slots that the block has freed their zeros again.

    Where it fails, it puts learning rates back too, so that the same call resumes its run.
    """
    rates = [rate for _, optimizer in optimizers_of(model) for rate in learning_rates_of(optimizer)]
    values = [rate.numpy() for rate in rates]
    try:
        yield
    except BaseException:
        for rate, value in zip(rates, values, strict=True):
            rate.assign(value)
        raise
    finally:
        for _, optimizer in optimizers_of(model):
            for slot in (variable.value for variable in optimizer.variables):
                if is_freed(slot):
                    give(slot, tf.zeros(slot.shape, slot.dtype))
