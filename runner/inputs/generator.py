"""Batches from Python generators."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError

# Returns an iterator over (features, labels), nested structures of arrays [batch, ...].
Batches: TypeAlias = Callable[..., Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class GeneratorData:
    """Batches from Python generators, prefetched like any others.

    A resumed run continues with the next batch: a function with an argument `start` is called with
    the number of that batch; any other function is called again, must yield the same batches, and
    its first batches are discarded. A generator that cannot, such as a live stream, needs
    `replay: false`: it just continues, and the run warns of that at its start.

    Attributes:
      train_batches: a function that returns an endless iterator.
      validation_batches: a function that returns an iterator over one pass.
      test_batches: likewise.
      replay: whether every call of `train_batches` yields the same batches.

    Raises:
      ValueError: when one of the three is not a function.
      ConfigError: from the splits, when an iterator is empty.
    """

    train_batches: Batches
    validation_batches: Batches
    test_batches: Batches
    replay: bool = True

    def __post_init__(self) -> None:
        for name in ("train_batches", "validation_batches", "test_batches"):
            if not callable(getattr(self, name)):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be a function, given with "
                    "`_partial_: true`"
                )

    def train(self) -> tf.data.Dataset:
        """Returns endless batches."""
        source = _Source(self.train_batches, self.replay)
        flat = tf.nest.flatten(source.spec)
        dtypes = [tf.bool, *(spec.dtype for spec in flat)]

        def fetch(index: tf.Tensor) -> tuple[tf.Tensor, Any]:
            more, *arrays = tf.numpy_function(
                source.batch, [index], dtypes, stateful=not self.replay
            )
            shaped = [
                tf.ensure_shape(array, spec.shape) for array, spec in zip(arrays, flat, strict=True)
            ]
            return tf.ensure_shape(more, []), tf.nest.pack_sequence_as(source.spec, shaped)

        # The number of the next batch is all the state there is, and TensorFlow saves it.
        batches = tf.data.Dataset.counter().map(fetch)
        options = tf.data.Options()
        # Batches requested out of order would restart the generator each time.
        options.experimental_optimization.map_parallelization = False
        return (
            batches.take_while(lambda more, batch: more)
            .map(lambda more, batch: batch)
            .with_options(options)
        )

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation batches."""
        return self._pass(self.validation_batches)

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test batches."""
        return self._pass(self.test_batches)

    def _pass(self, batches: Batches) -> tf.data.Dataset:
        spec = _Source(batches, replay=True).spec
        return tf.data.Dataset.from_generator(batches, output_signature=spec)


class _Source:
    """The batches of a generator by their numbers; reading in order costs nothing.

    Attributes:
      spec: nested `tf.TensorSpec`s of a batch, with any number of examples.
    """

    def __init__(self, batches: Batches, replay: bool) -> None:
        self._batches, self._replay = batches, replay
        self._lock = threading.Lock()
        iterator = iter(batches())
        first = next(iterator, None)
        if first is None:
            raise ConfigError.of("data: a generator gives no batch")
        self._iterator: Iterator[tuple[Any, Any]] = itertools.chain([first], iterator)
        self._next = 0
        arrays = tf.nest.map_structure(np.asarray, first)
        self.spec = tf.nest.map_structure(
            lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), arrays
        )

    def batch(self, index: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Returns whether batch number `index` exists, and its arrays, otherwise empty ones."""
        with self._lock:
            if self._replay and index != self._next:
                self._iterator = self._from(int(index))
            self._next = int(index) + 1
            batch = next(self._iterator, None)
        if batch is None:
            empty = [
                np.zeros([0, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
                for spec in tf.nest.flatten(self.spec)
            ]
            return [np.asarray(False), *empty]
        return [np.asarray(True), *map(np.asarray, tf.nest.flatten(batch))]

    def _from(self, index: int) -> Iterator[tuple[Any, Any]]:
        if "start" in inspect.signature(self._batches).parameters:
            return iter(self._batches(start=index))
        return itertools.islice(self._batches(), index, None)
