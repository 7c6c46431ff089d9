"""Examples in one place, divided into three splits: `.npz` files and folders of images."""

from __future__ import annotations

import abc
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError, Problem, nearest

# Fixed, and independent of the run's seed: all runs are measured on the same unseen examples.
SPLIT_SEED = 0
# What TensorFlow decodes.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp"})


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


class SplitData(abc.ABC):
    """Examples that a subclass lists for each split, and batches."""

    batch_size: int
    seed: int
    validation_part: float
    test_part: float

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
        return self._batches(order.shuffle(_count(examples), seed=self.seed).repeat())

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._examples("validation")))

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test examples, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._examples("test")))

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of examples."""
        return {part: _count(self._examples(part)) for part in ("train", "validation", "test")}

    @abc.abstractmethod
    def _examples(self, part: str) -> Any:
        """Returns the references to the examples of a split: an array, or several of one length."""

    @abc.abstractmethod
    def _batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        """Returns batches of the examples that the elements of `examples` refer to."""


def _count(examples: Any) -> int:
    return len(examples[0] if isinstance(examples, tuple) else examples)


@dataclass(frozen=True)
class Npz(SplitData):
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

    def _examples(self, part: str) -> NDArray[np.int64]:
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
        with np.load(path) as file:
            if name in file:
                return np.atleast_1d(file[name])
            names = list(file)
    except (OSError, ValueError) as error:
        raise ConfigError.of(f"data.path is {path}", f"it cannot be read: {error}") from error
    raise ConfigError.of(f"data: {path} has no array {name!r}", choices=nearest(name, names, 5))


@dataclass(frozen=True)
class ImageFolder(SplitData):
    """The images below `directory/CLASS/`, each class divided into three splits.

    Features are float32 [batch, height, width, channels] from 0 to 1. Labels are int32 [batch], the
    index of the class among the sorted names of the folders. The split depends only on the names of
    the files.

    Attributes:
      directory: holds one folder for each class.
      batch_size: images per batch; the last batch of validation and test may hold fewer.
      seed: decides the order of the training images.
      height: images are resized to it, without regard to their proportions.
      width: likewise.
      channels: 1 for grey, 3 for colour, 4 for colour with opacity.
      validation_part: the part of each class for validation, at least one image.
      test_part: the part for test, at least one image.

    Raises:
      ValueError: when `batch_size` is below 1, there are no such `channels`, or the parts leave
        nothing to train.
      ConfigError: from the splits, when there are no classes, or one has fewer than 3 images.
    """

    directory: str
    batch_size: int
    seed: int
    height: int
    width: int
    channels: int = 3
    validation_part: float = 0.1
    test_part: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (1, 3, 4):
            raise ValueError(f"channels is {self.channels}; choices: 1, 3, 4")

    def classes(self) -> list[str]:
        """Returns the names of the classes, in the order of their labels."""
        root = Path(self.directory)
        return sorted(path.name for path in root.glob("*") if path.is_dir())

    def _examples(self, part: str) -> tuple[list[str], list[int]]:
        files: list[str] = []
        labels: list[int] = []
        problems = []
        for label, name in enumerate(self.classes()):
            folder = Path(self.directory) / name
            images = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
            if len(images) < 3:
                problems.append(
                    Problem(
                        f"data: {folder} holds {len(images)} images",
                        "each split needs one of each class",
                        f"images end in {', '.join(sorted(SUFFIXES))}",
                    )
                )
                continue
            indices = split(len(images), self.validation_part, self.test_part)[part]
            files += [str(images[index]) for index in indices]
            labels += [label] * len(indices)
        if not files and not problems:
            problems.append(
                Problem(f"data.directory is {self.directory}", "it holds no folder for a class")
            )
        if problems:
            raise ConfigError(*problems)
        return files, labels

    def _batches(self, examples: tf.data.Dataset) -> tf.data.Dataset:
        def decode(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image = tf.io.decode_image(
                tf.io.read_file(file), channels=self.channels, expand_animations=False
            )
            image.set_shape([None, None, self.channels])
            return tf.image.resize(image, [self.height, self.width]) / 255, label

        decoded = examples.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        return decoded.batch(self.batch_size)
