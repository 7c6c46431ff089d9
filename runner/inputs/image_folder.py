"""Images in folders, one folder a class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.inputs.splits import require_batches, split

# What TensorFlow decodes.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp"})


@dataclass(frozen=True)
class ImageFolder:
    """The images below `directory/CLASS/`, each class divided into three splits.

    Features are float32 [batch, height, width, channels] from 0 to 1; labels are int32 [batch], the
    place of the class among the sorted names of the folders. The split depends on the names of the
    files alone.

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
        require_batches(self.batch_size, self.validation_part, self.test_part)
        if self.channels not in (1, 3, 4):
            raise ValueError(f"channels is {self.channels}; choices: 1, 3, 4")

    def train(self) -> tf.data.Dataset:
        """Returns batches without end, every image once an epoch, in a new order each time."""
        files, labels = self._files("train")
        order = tf.data.Dataset.from_tensor_slices((files, labels))
        return self._batches(order.shuffle(len(files), seed=self.seed).repeat())

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation images, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._files("validation")))

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test images, in a fixed order."""
        return self._batches(tf.data.Dataset.from_tensor_slices(self._files("test")))

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of images."""
        return {part: len(self._files(part)[0]) for part in ("train", "validation", "test")}

    def classes(self) -> list[str]:
        """Returns the names of the classes, in the order of their labels."""
        root = Path(self.directory)
        return (
            sorted(each.name for each in root.iterdir() if each.is_dir()) if root.is_dir() else []
        )

    def _files(self, part: str) -> tuple[list[str], list[int]]:
        files: list[str] = []
        labels: list[int] = []
        problems = []
        for label, name in enumerate(self.classes()):
            folder = Path(self.directory) / name
            images = sorted(each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES)
            if len(images) < 3:
                problems.append(
                    Problem(
                        f"data: {folder} holds {len(images)} images",
                        "each split needs one of each class",
                        f"images end in {', '.join(sorted(SUFFIXES))}",
                    )
                )
                continue
            chosen = getattr(split(len(images), self.validation_part, self.test_part), part)
            files += [str(images[index]) for index in chosen]
            labels += [label] * len(chosen)
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
