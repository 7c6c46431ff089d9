"""Keeps a model's values in a file while a session holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import IO, Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.internals.tensorflow import array_of_tensor, eager_mode, free, give, is_freed
from runner.system.array_file import ArrayFile, Place


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
