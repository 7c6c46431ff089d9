"""What `keras.Model.fit` takes as data: arrays, data frames, `PyDataset`s, generators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.inputs.generator import GeneratorData


class _Batches(Protocol):
    """The batches of a split by number; `len` is their number in an epoch."""

    def __len__(self) -> int: ...

    def batch(self, epoch: int, position: int) -> Any:
        """Returns a batch, in the order of an epoch if the epochs have orders of their own."""


@dataclass(frozen=True)
class FitData:
    """Data as `keras.Model.fit` takes them.

    The data of a split are features, (features, labels) or (features, labels, weights), where each
    is an array, a list, a `pandas` frame or series, or a dict of these; or a
    `keras.utils.PyDataset`; or a function that returns an iterator over batches, as in
    `GeneratorData`. Floats become `keras.config.floatx()`. In an epoch every example comes once,
    and the last batch may be smaller. A resumed run continues with the next batch; a `PyDataset`
    gets `on_epoch_end` once for each epoch before.

    Attributes:
      train_data: the training data.
      validation_data: the validation data; None takes `validation_split` of the training arrays.
      test_data: the test data; None takes the validation data.
      batch_size: examples in a batch of arrays.
      validation_split: the part of the training arrays, at their end and before they are shuffled,
        that is for validation.
      shuffle: whether arrays, and the batches of a `PyDataset`, train in a new order every epoch.
      seed: decides the orders.

    Raises:
      ValueError: when `batch_size` is below 1, or there are no validation data.
      ConfigError: from the splits, when the data are none of these, or there are none.
    """

    train_data: Any
    validation_data: Any = None
    test_data: Any = None
    batch_size: int = 32
    validation_split: float = 0.0
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.validation_data is None and not 0 < self.validation_split < 1:
            raise ValueError(
                "there are no validation_data: give some, or a part of the training data, such as "
                "validation_split: 0.2"
            )

    @property
    def epoch_length(self) -> int | None:
        """The number of training batches in an epoch; None where a generator decides."""
        return None if _is_function(self.train_data) else len(self._of("train", self.shuffle))

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of examples, where the data are arrays."""
        splits = ("train", "validation", "test" if self.test_data is not None else "validation")
        given = [getattr(self, f"{split}_data") for split in splits]
        if any(_is_function(data) for data in given):
            return {}
        batches = [self._of(split, shuffle=False) for split in splits]
        counts = [part.count for part in batches if isinstance(part, _OfArrays)]
        return (
            dict(zip(("train", "validation", "test"), counts, strict=True))
            if len(counts) == 3
            else {}
        )

    def train(self) -> tf.data.Dataset:
        """Returns endless batches."""
        if _is_function(self.train_data):
            return GeneratorData(*[self.train_data] * 3).train()
        batches = partial(_endless, self._of("train", self.shuffle))
        return GeneratorData(batches, batches, batches).train()

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation data, in their order."""
        return self._pass("validation")

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test data, in their order."""
        return self._pass("validation" if self.test_data is None else "test")

    def _pass(self, split: str) -> tf.data.Dataset:
        data = getattr(self, f"{split}_data")
        if not _is_function(data):
            batches = self._of(split, shuffle=False)
            data = partial(_one_pass, batches)
        return GeneratorData(data, data, data).validation()

    def _of(self, split: str, shuffle: bool) -> _Batches:
        data = getattr(self, f"{split}_data")
        part = slice(None)
        if self.validation_data is None and split in ("train", "validation"):
            data = self.train_data
            if isinstance(data, keras.utils.PyDataset):
                raise ConfigError(
                    Problem(
                        "data.validation_split is set, and data.train_data is a PyDataset",
                        "only arrays can be split",
                        "give validation_data",
                    )
                )
            count = _count(_arrays(data))
            # As Keras rounds it.
            begin = math.floor(count * (1.0 - self.validation_split))
            part = slice(begin) if split == "train" else slice(begin, count)
        seed = self.seed if shuffle else None
        if isinstance(data, keras.utils.PyDataset):
            return _OfPyDataset(data, seed)
        return _OfArrays(
            tf.nest.map_structure(lambda array: array[part], _arrays(data)), self.batch_size, seed
        )


class _OfArrays:
    """Batches of examples; in each epoch another order, which its number and the seed decide."""

    def __init__(self, arrays: Any, size: int, seed: int | None) -> None:
        self._arrays, self._size, self._seed = arrays, size, seed
        self.count = _count(arrays)
        self._epoch, self._order = -1, np.arange(self.count)

    def __len__(self) -> int:
        return -(-self.count // self._size)

    def batch(self, epoch: int, position: int) -> Any:
        if self._seed is not None and epoch != self._epoch:
            self._epoch, self._order = epoch, _order(self.count, self._seed, epoch)
        rows = self._order[position * self._size : (position + 1) * self._size]
        return tf.nest.map_structure(lambda array: array[rows], self._arrays)


class _OfPyDataset:
    """The batches of a `PyDataset`."""

    def __init__(self, dataset: keras.utils.PyDataset, seed: int | None) -> None:
        self._dataset, self._seed = dataset, seed
        self._epoch, self._order = 0, self._order_of(0)

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, epoch: int, position: int) -> Any:
        while self._epoch < epoch:
            self._dataset.on_epoch_end()
            self._epoch += 1
            self._order = self._order_of(self._epoch)
        return self._dataset[int(self._order[position])]

    def _order_of(self, epoch: int) -> Any:
        if self._seed is None:
            return np.arange(len(self))
        return _order(len(self), self._seed, epoch)


def _order(count: int, seed: int, epoch: int) -> Any:
    return np.random.default_rng((seed, epoch)).permutation(count)


def _endless(batches: _Batches, start: int = 0) -> Iterator[Any]:
    for number in itertools.count(start):
        yield batches.batch(*divmod(number, len(batches)))


def _one_pass(batches: _Batches) -> Iterator[Any]:
    for position in range(len(batches)):
        yield batches.batch(0, position)


def _is_function(data: Any) -> bool:
    return callable(data) and not isinstance(data, keras.utils.PyDataset)


def _count(arrays: Any) -> int:
    counts = {len(array) for array in tf.nest.flatten(arrays)}
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(
            Problem(
                f"data: the arrays have {sorted(counts)} examples",
                "there must be as many features as labels and weights, and at least one",
            )
        )
    return counts.pop()


def _arrays(data: Any) -> Any:
    """Returns nested arrays, of numbers or strings, with floats of Keras's precision."""
    if isinstance(data, dict):
        return {name: _arrays(item) for name, item in data.items()}
    if isinstance(data, tuple):
        return tuple(_arrays(item) for item in data if item is not None)
    array = np.asarray(data)
    if array.dtype == object and array.size and isinstance(array.flat[0], str):
        array = array.astype(str)
    if array.dtype.kind not in "biufSU" or not array.ndim:
        raise ConfigError(
            Problem(
                f"data: a {type(data).__name__} is no array of numbers or strings",
                "data are arrays or data frames, as features or (features, labels, weights), a "
                "keras.utils.PyDataset, or a function that returns a generator",
                "of columns of several types make a dict: dict(frame); a function is given with "
                "`_partial_: true`",
            )
        )
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array
