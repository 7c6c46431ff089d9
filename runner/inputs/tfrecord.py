"""Examples in TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from typing import Any

import tensorflow as tf

from runner.errors import ConfigError, Problem, ranked

# The dtypes of a `tf.train.Feature`; a tensor of any other is stored as its bytes.
_STORED = frozenset({"float32", "int64", "string"})


@dataclass(frozen=True)
class TFRecord:
    """`tf.train.Example`s, in separate files for each split.

    Features are a tensor [batch, *shape], or a dict of tensors where the spec names several besides
    the label; labels are [batch, *shape].

    Attributes:
      train_files: patterns such as `/data/train-*`; the files are read in sorted order.
      validation_files: likewise.
      test_files: likewise.
      features: name -> `{shape: [28, 28], dtype: float32}`, including the label. Without a shape a
        feature is a scalar. Dtypes other than float32, int64 and string are read from raw bytes.
      label: the name of the feature that is the label.
      batch_size: examples per batch; the last batch of validation and test may hold fewer.
      seed: decides the order of the training examples.
      shuffle_buffer: the number of training examples from which the next one is drawn.
      compression: empty, `GZIP` or `ZLIB`.

    Raises:
      ValueError: when `batch_size` or `shuffle_buffer` is below 1, or there is no such compression.
      ConfigError: from the splits, when a pattern matches no file, or the spec is incomplete.
    """

    train_files: Sequence[str]
    validation_files: Sequence[str]
    test_files: Sequence[str]
    features: Mapping[str, Mapping[str, Any]]
    label: str
    batch_size: int
    seed: int
    shuffle_buffer: int = 10_000
    compression: str = ""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.shuffle_buffer < 1:
            raise ValueError(
                f"batch_size is {self.batch_size} and shuffle_buffer {self.shuffle_buffer}; both "
                "must be at least 1"
            )
        if self.compression not in ("", "GZIP", "ZLIB"):
            raise ValueError(f"compression is {self.compression!r}; choices: '', 'GZIP', 'ZLIB'")

    def train(self) -> tf.data.Dataset:
        """Returns endless batches, in a new order every epoch."""
        records = self._records("train_files").shuffle(self.shuffle_buffer, seed=self.seed)
        return self._batches(records.repeat())

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation files."""
        return self._batches(self._records("validation_files"))

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test files."""
        return self._batches(self._records("test_files"))

    def _records(self, key: str) -> tf.data.Dataset:
        patterns = getattr(self, key)
        matches = [
            (pattern, sorted(glob(pattern)))
            for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        ]
        problems = [
            Problem(f"data.{key}: {pattern} matches no file")
            for pattern, matched in matches
            if not matched
        ]
        if problems or not matches:
            raise ConfigError(*problems or [Problem(f"data.{key} names no file")])
        files = [file for _, matched in matches for file in matched]
        return tf.data.TFRecordDataset(files, self.compression or None)

    def _batches(self, records: tf.data.Dataset) -> tf.data.Dataset:
        if self.label not in self.features or len(self.features) < 2:
            raise ConfigError.of(
                f"data.label is {self.label!r} among the features {', '.join(self.features)}",
                "the label and at least one other must be among them",
                choices=ranked(self.label, self.features),
            )
        shapes = {name: list(spec.get("shape", [])) for name, spec in self.features.items()}
        dtypes = {name: tf.as_dtype(spec["dtype"]) for name, spec in self.features.items()}
        raw = {name for name, dtype in dtypes.items() if dtype.name not in _STORED}
        stored = {
            name: tf.io.FixedLenFeature([], tf.string)
            if name in raw
            else tf.io.FixedLenFeature(shapes[name], dtypes[name])
            for name in self.features
        }

        def parse(batch: tf.Tensor) -> tuple[Any, tf.Tensor]:
            values = tf.io.parse_example(batch, stored)
            for name in raw:
                flat = tf.io.decode_raw(values[name], dtypes[name])
                values[name] = tf.reshape(flat, [-1, *shapes[name]])
            label = values.pop(self.label)
            return (values if len(values) > 1 else next(iter(values.values()))), label

        return records.batch(self.batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
