"""scikit-learn's 1,797 handwritten digits, as single images and as sequences to sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# Fixed, unlike the run's seed: all runs are evaluated on the same unseen images, and a pretrained
# CNN has never seen the images on which the warm-started model is evaluated.
SPLIT_SEED = 0
# The share of images in validation and test together; each has half of it.
HELD_OUT = 0.4


@dataclass(frozen=True)
class Images:
    """The images of one split.

    Attributes:
      images: brightness from 0 to 1, float32 [count, 8, 8, 1].
      digits: the digits in the images, 0 to 9, int32 [count].
    """

    images: NDArray[np.float32]
    digits: NDArray[np.int32]


@dataclass(frozen=True)
class Splits:
    """The images, divided so that no two splits share one and each digit is equally frequent."""

    train: Images
    validation: Images
    test: Images


@cache
def load_splits() -> Splits:
    """Returns 1,078 images for training, 359 for validation and 360 for test, always the same."""
    # A config that names this module need not wait a second for scikit-learn. Keras imports it too,
    # where it is installed.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, digits = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    train, held_out = train_test_split(
        np.arange(len(images)), test_size=HELD_OUT, stratify=digits, random_state=SPLIT_SEED
    )
    validation, test = train_test_split(
        held_out, test_size=0.5, stratify=digits[held_out], random_state=SPLIT_SEED
    )

    def choose(indices: NDArray[np.int64]) -> Images:
        return Images(images[indices], digits[indices].astype(np.int32))

    return Splits(choose(train), choose(validation), choose(test))


@dataclass(frozen=True)
class Digits:
    """Single images and their digits.

    Features are float32 [batch, 8, 8, 1] from 0 to 1, labels int32 [batch] from 0 to 9.

    Attributes:
      batch_size: images per batch; the last batch of validation and test may hold fewer.
      seed: decides the order of the training images.

    Raises:
      ValueError: when `batch_size` is less than 1.
    """

    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        _require_at_least(1, batch_size=self.batch_size)

    def train(self) -> tf.data.Dataset:
        """Returns batches without end, every image once an epoch, in a new order each time."""
        images = load_splits().train
        return self._batches(images, _shuffled_indices(images, self.seed))

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation images, in a fixed order."""
        return self._pass(load_splits().validation)

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test images, in a fixed order."""
        return self._pass(load_splits().test)

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of images."""
        splits = load_splits()
        parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
        return {name: len(images.digits) for name, images in parts.items()}

    def _pass(self, images: Images) -> tf.data.Dataset:
        return self._batches(images, tf.data.Dataset.range(len(images.digits)))

    def _batches(self, images: Images, indices: tf.data.Dataset) -> tf.data.Dataset:
        def look_up(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.gather(images.images, batch), tf.gather(images.digits, batch)

        return _looked_up(indices.batch(self.batch_size), look_up)


@dataclass(frozen=True)
class DigitSequences:
    """Sequences of images, labelled with the sum of their digits modulo `modulus`.

    The label depends on every image equally: a model that forgets one of them can only guess.

    Features are float32 [batch, length, 8, 8, 1] from 0 to 1; labels, from 0 to modulus - 1, are
    int32 [batch, length] with `every_step`, else int32 [batch].

    Attributes:
      batch_size: sequences per batch; the last batch of validation and test may hold fewer.
      seed: decides which training sequences there are, and their order.
      length: images per sequence.
      modulus: the labels are sums modulo this.
      every_step: True labels each image with the sum so far, False only the whole sequence.
      evaluation_sequences: sequences in the validation split and in the test split, which are the
        same for every seed.

    Raises:
      ValueError: when a number is too small.
    """

    batch_size: int
    seed: int
    length: int
    modulus: int = 10
    every_step: bool = True
    evaluation_sequences: int = 1000

    def __post_init__(self) -> None:
        _require_at_least(
            1,
            batch_size=self.batch_size,
            length=self.length,
            evaluation_sequences=self.evaluation_sequences,
        )
        _require_at_least(2, modulus=self.modulus)

    def train(self) -> tf.data.Dataset:
        """Returns batches without end; every epoch shuffles the images into new sequences."""
        images = load_splits().train
        indices = _shuffled_indices(images, self.seed).batch(self.length, drop_remainder=True)
        return self._batches(images, indices)

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over fixed sequences of validation images."""
        return self._pass(load_splits().validation)

    def test(self) -> tf.data.Dataset:
        """Returns one pass over fixed sequences of test images."""
        return self._pass(load_splits().test)

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of sequences; for training, the number in an epoch."""
        train = len(load_splits().train.digits) // self.length
        return {
            "train": train,
            "validation": self.evaluation_sequences,
            "test": self.evaluation_sequences,
        }

    def _pass(self, images: Images) -> tf.data.Dataset:
        indices = np.random.default_rng(SPLIT_SEED).integers(
            len(images.digits), size=(self.evaluation_sequences, self.length)
        )
        return self._batches(images, tf.data.Dataset.from_tensor_slices(indices))

    def _batches(self, images: Images, indices: tf.data.Dataset) -> tf.data.Dataset:
        def look_up(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = tf.cumsum(tf.gather(images.digits, batch), axis=1) % self.modulus
            labels = sums if self.every_step else sums[:, -1]
            return tf.gather(images.images, batch), labels

        return _looked_up(indices.batch(self.batch_size), look_up)


def _looked_up(batches: tf.data.Dataset, look_up: Callable[[tf.Tensor], Any]) -> tf.data.Dataset:
    options = tf.data.Options()
    # There is nothing to tune, and the tuning thread can delay the end of a session.
    options.autotune.enabled = False
    return batches.map(look_up).prefetch(1).with_options(options)


def _shuffled_indices(images: Images, seed: int) -> tf.data.Dataset:
    count = len(images.digits)
    return tf.data.Dataset.range(count).shuffle(count, seed=seed).repeat()


def _require_at_least(least: int, **values: int) -> None:
    wrong = [f"{name} is {value}" for name, value in values.items() if value < least]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}; it must be at least {least}")
