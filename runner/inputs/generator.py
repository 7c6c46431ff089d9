"""Batches from Python generators."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError, Problem

# Returns an iterator over (features, labels), nested structures of arrays [batch, ...].
Batches: TypeAlias = Callable[..., Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class GeneratorData:
    """Batches from Python generators, prefetched like any others.

    A resumed run continues with the next batch: a function with an argument `start` is called with
    the number of that batch; any other is called again and must yield the same batches, of which
    the first are discarded. A generator that cannot, such as a live stream, needs `replay: false`:
    it just continues, and the run warns at its start that it will.

    Attributes:
      train_batches: a function that returns an endless iterator.
      validation_batches: one that returns an iterator over one pass.
      test_batches: likewise.
      replay: whether `train_batches` yields the same batches each time it is called.

    Raises:
      ValueError: when one of them is not a function.
      ConfigError: from the splits, when a function does not return an iterator, or an empty one.
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
        dtypes = [tf.bool, *(each.dtype for each in flat)]

        def fetch(index: tf.Tensor) -> tuple[tf.Tensor, Any]:
            more, *arrays = tf.numpy_function(
                source.batch, [index], dtypes, stateful=not self.replay
            )
            shaped = [
                tf.ensure_shape(array, each.shape) for array, each in zip(arrays, flat, strict=True)
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
    """An iterator that returns any batch by its number; in order it costs nothing.

    Attributes:
      spec: nested `tf.TensorSpec`s of a batch, with any number of examples.
    """

    def __init__(self, batches: Batches, replay: bool) -> None:
        self._batches, self._replay = batches, replay
        self._lock = threading.Lock()
        made = batches()
        if not isinstance(made, Iterable):
            raise ConfigError(
                Problem(f"data: a generator gives {made!r}", "it must give an iterator of batches")
            )
        iterator = iter(made)
        first = next(iterator, None)
        if first is None:
            raise ConfigError(Problem("data: a generator gives no batch"))
        self._iterator: Iterator[tuple[Any, Any]] = itertools.chain([first], iterator)
        self._next = 0
        arrays = tf.nest.map_structure(np.asarray, first)
        self.spec = tf.nest.map_structure(
            lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), arrays
        )

    def batch(self, index: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Returns whether there is a batch number `index`, then its arrays, empty if not."""
        with self._lock:
            if self._replay and index != self._next:
                self._iterator = self._from(int(index))
            self._next = int(index) + 1
            found = next(self._iterator, None)
        flat = tf.nest.flatten(self.spec)
        if found is None:
            empty = [np.zeros([0, *each.shape[1:]], each.dtype.as_numpy_dtype) for each in flat]
            return [np.asarray(False), *empty]
        return [np.asarray(True), *(np.asarray(each) for each in tf.nest.flatten(found))]

    def _from(self, index: int) -> Iterator[tuple[Any, Any]]:
        if "start" in inspect.signature(self._batches).parameters:
            return iter(self._batches(start=index))
        return itertools.islice(self._batches(), index, None)
