"""Arrays from a `.npz` file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError, Problem, nearest
from runner.inputs.splits import Splits, require_batches, split


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
        require_batches(self.batch_size, self.validation_part, self.test_part)

    def train(self) -> tf.data.Dataset:
        """Returns batches without end, every example once an epoch, in a new order each time."""
        indices = self._splits().train
        order = tf.data.Dataset.from_tensor_slices(indices)
        return self._batches(order.shuffle(len(indices), seed=self.seed).repeat())

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._splits().validation))

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._splits().test))

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of examples."""
        return {name: len(indices) for name, indices in asdict(self._splits()).items()}

    def _splits(self) -> Splits:
        count = len(_array(self.path, self.labels))
        if len(_array(self.path, self.features)) != count or count < 3:
            raise ConfigError(
                Problem(
                    f"data: {self.path} holds {len(_array(self.path, self.features))} "
                    f"{self.features} and {count} {self.labels}",
                    "there must be as many of one as of the other, and at least 3",
                )
            )
        return split(count, self.validation_part, self.test_part)

    def _batches(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        arrays = (_array(self.path, self.features), _array(self.path, self.labels))

        def look_up(batch: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
            return tuple(each[batch] for each in arrays)

        def gather(batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # As constants of the graph the arrays could not exceed its limit of 2 GB.
            found = tf.numpy_function(
                look_up, [batch], [each.dtype for each in arrays], stateful=False
            )
            return tuple(
                tf.ensure_shape(tensor, [None, *each.shape[1:]])
                for tensor, each in zip(found, arrays, strict=True)
            )

        return indices.batch(self.batch_size).map(gather)


@cache
def _array(path: str, name: str) -> NDArray[Any]:
    try:
        with np.load(path) as file:
            if name in file and np.ndim(file[name]) > 0:
                return np.asarray(file[name])
            if name in file:
                raise ConfigError(
                    Problem(
                        f"data: {name!r} in {path} is a single value",
                        "its first dimension must be the examples",
                    )
                )
            names = list(file)
    except (OSError, ValueError) as error:
        raise ConfigError(Problem(f"data.path is {path}", f"it cannot be read: {error}")) from error
    raise ConfigError(
        Problem(f"data: {path} has no array {name!r}", choices=nearest(name, names, 5))
    )
