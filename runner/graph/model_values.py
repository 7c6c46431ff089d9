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
    give,
    is_freed,
)
from runner.planning.optimizer_slots import LEARNING_RATE
from runner.planning.optimizer_state import learning_rates_of, optimizers_of
from runner.system.array_file import ArrayFile, Place

OUTSIDE = "program/"
"""Begins the names of variables that steps use and that the model does not track."""

# Smaller variables are not worth the trouble.
_LARGE = 2**14
# The bytes that a session hands over at once, and in how many parts at most: what it fetches is
# there twice for a moment, and each part needs runs of its own.
_PART, _PARTS = 2**26, 16


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
        self._ids = {id(variable) for _, variable in self._pairs.values()}
        self._size = sum(_size(variable) for _, variable in self._pairs.values())
        # Name -> the value of the session that the model took, which shares its memory until the
        # variable gets another one.
        self._taken: dict[str, tf.Tensor] = {}
        # The names of those that the session does not have meanwhile.
        self._lent = set[str]()
        # Name -> reads the session's value and frees it, where it is worth it.
        self._lending: dict[str, tuple[tf.Tensor, tf.Operation]] = {}
        if self._size > _PART:
            large = {
                name: variable
                for name, (variable, eager) in self._pairs.items()
                if is_large(eager) and _kind_of_device(eager) == _kind_of_device(variable)
            }
            self._lending = dict(zip(large, _reads_and_frees([*large.values()]), strict=True))

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the model's variables, Keras's or TensorFlow's."""
        return not self._ids.isdisjoint((id(value), id(getattr(value, "value", None))))

    @contextmanager
    def restored_on_error(self, session: tf.compat.v1.Session) -> Iterator[None]:
        """Gives the session its former values back if the block, which exchanges them, fails."""
        try:
            yield
        except BaseException:
            self.push(session, changes=False)
            raise

    def forget(self) -> None:
        """Notes that the session has other values."""
        self._taken, self._lent = {}, set()

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
        self._pull(session, self._pairs)
        self.forget()
        finalize(self.model)

    def pull(self, session: tf.compat.v1.Session, *, weights: bool) -> None:
        """Takes values of the session that it does not have yet: counters and rates, or all.

        The values of a large model would be in memory twice. So the session lends them: it has none
        until `push`. Nothing is lent to a model on the CPU by a session with a GPU.
        """
        self._pull(session, self._pairs if weights else self._light)
        if weights:
            finalize(self.model)

    def _pull(self, session: tf.compat.v1.Session, names: Iterable[str]) -> None:
        lending = {} if session.sess_str else self._lending
        for part in self._parts(name for name in names if name not in self._taken):
            reads = [lending[n][0] if n in lending else self._pairs[n][0] for n in part]
            values, _ = session.run((reads, [lending[n][1] for n in part if n in lending]))
            for name, value in zip(part, values, strict=True):
                give(self._pairs[name][1], value)
                self._taken[name] = self._pairs[name][1].read_value()
                if name in lending:
                    self._lent.add(name)
            del values

    def _parts(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Yields the names of variables that are exchanged together."""
        part, size = list[str](), 0
        for name in names:
            part.append(name)
            size += _size(self._pairs[name][1])
            if size >= max(_PART, self._size // _PARTS):
                yield part
                part, size = [], 0
        if part:
            yield part

    def push(self, session: tf.compat.v1.Session, *, changes: bool = True) -> bool:
        """Gives the session what it has lent, and what callbacks have changed.

        Args:
          session: the session.
          changes: whether it takes what has changed; else it has the values again that it had.

        Returns:
          Whether it takes any changes.
        """
        changed = {
            name
            for name, taken in self._taken.items()
            if changes and not same_value(self._pairs[name][1], taken)
        }
        # In the same order each time, for which the session has prepared its runs.
        names = [name for name in self._taken if name in self._lent or name in changed]
        for part in self._parts(names):
            values = {}
            for name in part:
                variable = self._pairs[name][1]
                value = variable.read_value() if changes else self._taken[name]
                # A copy, as the session changes values in place, and callbacks may hold this one.
                values[name] = value.numpy()
                if name in self._lent:
                    del value, self._taken[name]
                    free(variable)
                else:
                    self._taken[name] = variable.read_value()
            assign_in_session(
                session, ((self._pairs[name][0], value) for name, value in values.items())
            )
            self._lent.difference_update(part)
        return bool(changed)


def is_large(variable: tf.Variable) -> bool:
    """Returns whether it saves memory to free the value of an eager variable."""
    return bool(variable.shape.num_elements() >= _LARGE and variable.dtype.is_floating)


def _kind_of_device(variable: tf.Variable) -> str:
    kind = tf.DeviceSpec.from_string(variable.device).device_type
    return str(kind or ("GPU" if tf.config.list_logical_devices("GPU") else "CPU"))


def _reads_and_frees(variables: Sequence[tf.Variable]) -> Iterator[tuple[tf.Tensor, tf.Operation]]:
    """Yields the value of each variable of a session, and what frees it afterwards."""
    with tf.name_scope("lent"):
        # Of no static shape, which would be compared with that of the variable.
        empty = {
            dtype: tf.compat.v1.placeholder_with_default(tf.zeros([0], dtype), None)
            for dtype in {variable.dtype for variable in variables}
        }
        for variable in variables:
            value = variable.read_value()
            with tf.control_dependencies([value]):
                freed = tf.raw_ops.AssignVariableOp(
                    resource=variable.handle, value=empty[variable.dtype], validate_shape=False
                )
            yield value, freed


def same_value(variable: tf.Variable, value: tf.Tensor) -> bool:
    """Returns whether an eager variable has a value, to the bit: NaN differs from itself."""
    now, then = array_of_tensor(variable.read_value()), array_of_tensor(value)
    if now.dtype.kind in "OS":
        return np.array_equal(now, then)
    same_memory = now.ctypes.data == then.ctypes.data
    return same_memory or now.tobytes() == then.tobytes()


def _size(variable: tf.Variable) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)


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
