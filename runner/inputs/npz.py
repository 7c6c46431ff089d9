"""Examples in a `.npz` file, divided into three splits."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError, nearest

# Fixed, and independent of the run's seed: all runs are measured on the same unseen examples.
SPLIT_SEED = 0


def split(count: int, validation: float, test: float) -> dict[str, NDArray[np.int64]]:
    """Returns split -> indices of its examples: random, but always the same for a count.

    Args:
      count: how many examples there are.
      validation: the part of the examples for validation; at least one example.
      test: the part of the examples for test; at least one example.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(count)
    held_out = max(1, round(count * validation))
    tested = max(1, round(count * test))
    return {
        "train": order[held_out + tested :],
        "validation": order[:held_out],
        "test": order[held_out : held_out + tested],
    }


@dataclass(frozen=True)
class Npz:
    """Examples in two arrays of one file, divided into three splits.

    Features and labels are [batch, ...] with the arrays' dtypes.

    Attributes:
      path: the file.
      batch_size: examples per batch; the last batch of validation and test may hold fewer.
      seed: decides the order of the training examples.
      features: the name of the array of features, [count, ...].
      labels: the name of the array of labels, [count, ...].
      validation_part: the part of the examples for validation.
      test_part: the part for test.

    Raises:
      ValueError: when `batch_size` is below 1 or the parts leave nothing to train.
      ConfigError: from the splits, when the file cannot be read, lacks an array, or its arrays do
        not fit together.
    """

    path: str
    batch_size: int
    seed: int
    features: str = "features"
    labels: str = "labels"
    validation_part: float = 0.1
    test_part: float = 0.1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")
        validation, test = self.validation_part, self.test_part
        if not (validation > 0 and test > 0 and validation + test < 1):
            raise ValueError(
                f"validation is {validation:g} and test {test:g}; both must be above 0, and "
                "together below 1"
            )

    def train(self) -> tf.data.Dataset:
        """Returns endless batches, every example once an epoch, in a new order every epoch."""
        examples = self._examples("train")
        order = tf.data.Dataset.from_tensor_slices(examples)
        return self._batches(order.shuffle(len(examples), seed=self.seed).repeat())

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._examples("validation")))

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._examples("test")))

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of examples."""
        return {part: len(self._examples(part)) for part in ("train", "validation", "test")}

    def _examples(self, part: str) -> NDArray[np.int64]:
        """Returns the indices of the examples of a split."""
        count = len(_array(self.path, self.labels))
        if len(_array(self.path, self.features)) != count or count < 3:
            raise ConfigError.of(
                f"data: {self.path} holds {len(_array(self.path, self.features))} "
                f"{self.features} and {count} {self.labels}",
                "there must be as many of one as of the other, and at least 3",
            )
        return split(count, self.validation_part, self.test_part)[part]

    def _batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        arrays = (_array(self.path, self.features), _array(self.path, self.labels))

        def look_up(batch: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
            return tuple(array[batch] for array in arrays)

        def gather(batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # As constants of the graph the arrays could not exceed its limit of 2 GB.
            tensors = tf.numpy_function(
                look_up, [batch], [array.dtype for array in arrays], stateful=False
            )
            return tuple(
                tf.ensure_shape(tensor, [None, *array.shape[1:]])
                for tensor, array in zip(tensors, arrays, strict=True)
            )

        return examples.batch(self.batch_size).map(gather)


def _array(path: str, name: str) -> NDArray[Any]:
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        changed = 0
    return _read(path, name, changed)


@cache
def _read(path: str, name: str, changed: int) -> NDArray[Any]:
    """Returns an array of a file, read once until the file is changed, at `changed`."""
    try:
        with open(path, "rb") as content:
            if not zipfile.is_zipfile(content):
                raise ValueError(
                    "an .npz file is a zip archive, and this is none, or not a whole one"
                )
        with np.load(path) as file:
            if name in file:
                return np.atleast_1d(file[name])
            names = list(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError.of(f"data.path is {path}", f"it cannot be read: {error}") from error
    raise ConfigError.of(f"data: {path} has no array {name!r}", choices=nearest(name, names, 5))
