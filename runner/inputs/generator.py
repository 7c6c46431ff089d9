"""Batches from Python generators."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.console import sized
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


class GivenGenerator:
    """A generator object as a function that returns it, though its batches come once.

    The run that resumes in another process gets the generator of that process, from its first batch
    on.

    Args:
      generator: the generator; its first two batches are read.

    Attributes:
      first: these batches.

    Raises:
      ConfigError: when it is empty.
    """

    def __init__(self, generator: Iterator[Any]) -> None:
        self.first = [*itertools.islice(generator, 2)]
        if not self.first:
            raise ConfigError.of("data: a generator gives no batch")
        self._rest = generator
        # The index of the next batch of `_rest`, and of `following`.
        self._position = self._following = len(self.first)
        self._all: list[Any] | None = None
        self._has_ended = False

    def __call__(self, start: int = 0) -> Iterator[Any]:
        """Yields the batches from the one of index `start` on."""
        for index in itertools.count(start):
            try:
                yield self._batch(index)
            except StopIteration:
                return

    def following(self) -> Iterator[Any]:
        """Yields `first`, and then the batches that it has not yielded yet, as in `fit`."""
        yield from self.first
        while True:
            try:
                batch = self._batch(self._following)
            except StopIteration:
                return
            self._following += 1
            yield batch

    @property
    def length(self) -> int | None:
        """How many batches there are, once `count` has counted them."""
        return None if self._all is None else len(self._all)

    def count(self, argument: str) -> int:
        """Returns how many batches there are, which are held from then on.

        Args:
          argument: the argument of `fit` that tells their number, for the message.

        Raises:
          ConfigError: when they take more memory than there should be for that.
        """
        if self._all is None:
            batches, size = [*self.first], 0
            for batch in self._rest:
                batches.append(batch)
                size += sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(batch))
                if size > _MOST_BYTES:
                    raise ConfigError.of(
                        f"data: a generator gave {len(batches)} batches, {sized(size)}, and no end",
                        "a run counts the batches of an epoch before it begins, and holds them, "
                        "because a generator gives them once",
                        f"set {argument}, or give the function that returns the generator",
                    )
            self._all = batches
        return len(self._all)

    def _batch(self, index: int) -> Any:
        """Returns a batch; raises StopIteration after the last one."""
        held = self.first if self._all is None else self._all
        if index < len(held) and not self._has_ended:
            return held[index]
        if self._all is not None:
            raise StopIteration
        if index < self._position:
            raise ConfigError.of(
                f"data: batch {index} of a generator is needed again, and it gave "
                f"{self._position} already",
                "a generator gives its batches once",
                "let it give steps_per_epoch batches for every epoch; or give the function that "
                "returns it, or make the generator again before this call",
            )
        while True:
            try:
                batch = next(self._rest)
            except StopIteration:
                self._has_ended = True
                raise
            self._position += 1
            if index < self._position:
                return batch


_MOST_BYTES = 2**30


def spec_of(batches: Sequence[Any]) -> Any:
    """Returns nested `tf.TensorSpec`s that fit batches, with any number of examples.

    As in `fit`, a dimension that differs between them may have any size.

    Raises:
      ConfigError: when a batch is a list.
    """
    if isinstance(batches[0], list):
        raise ConfigError.of(
            "data: a generator gives lists",
            "as in fit, a batch is a tuple: (x,), (x, y) or (x, y, sample_weight)",
        )

    def spec(*leaves: Any) -> tf.TensorSpec:
        arrays = [np.asarray(leaf) for leaf in leaves]
        shapes = {array.shape[1:] for array in arrays}
        rest = [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)]
        return tf.TensorSpec([None, *rest], dtype_of(arrays[0]))

    return tf.nest.map_structure(spec, *batches)


def dtype_of(array: NDArray[Any]) -> tf.DType:
    """Returns the type of an array's elements, as tensors have it."""
    return tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)


class _Source:
    """The batches of a generator by their numbers; reading in order costs nothing.

    Attributes:
      spec: nested `tf.TensorSpec`s of a batch, with any number of examples.
    """

    def __init__(self, batches: Batches, replay: bool) -> None:
        self._batches, self._replay = batches, replay
        self._lock = threading.Lock()
        iterator = iter(batches())
        first = [*itertools.islice(iterator, 2)]
        if not first:
            raise ConfigError.of("data: a generator gives no batch")
        self._iterator: Iterator[tuple[Any, Any]] = itertools.chain(first, iterator)
        self._next = 0
        self.spec = spec_of(first)

    def batch(self, index: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Returns whether batch number `index` exists, and its arrays, otherwise empty ones."""
        with self._lock:
            if self._replay and index != self._next:
                self._iterator = self._from(int(index))
            self._next = int(index) + 1
            batch = next(self._iterator, None)
        if batch is None:
            empty = [
                np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype)
                for spec in tf.nest.flatten(self.spec)
            ]
            return [np.asarray(False), *empty]
        return [np.asarray(True), *map(np.asarray, tf.nest.flatten(batch))]

    def _from(self, index: int) -> Iterator[tuple[Any, Any]]:
        if "start" in inspect.signature(self._batches).parameters:
            return iter(self._batches(start=index))
        return itertools.islice(self._batches(), index, None)
