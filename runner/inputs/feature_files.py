"""Files of features alone: arrays, or one example a line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from runner.errors import ConfigError

SUFFIXES = (".npz", ".npy", ".jsonl")


def features_of_file(path: str, batch_size: int) -> tf.data.Dataset:
    """Returns the features in a file, in batches and in the order of the file.

    Args:
      path: a `.npz` with arrays [count, ...], of which one alone is a tensor and several are a
        dict; a `.npy`, read as needed; or a `.jsonl` with an object, a list or a number a line, of
        the shapes of the first line.
      batch_size: examples in a batch; the last one may hold fewer.

    Raises:
      ConfigError: when the file cannot be read or has no example.
    """
    if not path.endswith(SUFFIXES):
        raise ConfigError.of(
            f"the features are in {path}", "its suffix tells the format", choices=SUFFIXES
        )
    try:
        if path.endswith(".jsonl"):
            return _of_lines(Path(path)).batch(batch_size)
        file = np.load(path, mmap_mode="r")
        arrays = {name: file[name] for name in file} if path.endswith(".npz") else {"": file}
        (count,) = {len(array) for array in arrays.values()}
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError.of(f"{path} holds no features", cause) from error

    def read() -> Iterator[Any]:
        for begin in range(0, count, batch_size):
            batch = {
                name: np.asarray(array[begin : begin + batch_size])
                for name, array in arrays.items()
            }
            yield batch if len(batch) > 1 else next(iter(batch.values()))

    specs = {
        name: tf.TensorSpec([None, *array.shape[1:]], _dtype(array))
        for name, array in arrays.items()
    }
    spec = specs if len(specs) > 1 else next(iter(specs.values()))
    return tf.data.Dataset.from_generator(read, output_signature=spec)


def _of_lines(path: Path) -> tf.data.Dataset:
    def read() -> Iterator[Any]:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                example = json.loads(line)
                yield _arrays(example)

    first = next(read(), None)
    if first is None:
        raise ValueError("it is empty")
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, _dtype(array)), first)
    return tf.data.Dataset.from_generator(read, output_signature=spec)


def _arrays(example: Any) -> Any:
    if isinstance(example, dict):
        return {name: _arrays(item) for name, item in example.items()}
    array = np.asarray(example)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _dtype(array: Any) -> tf.DType:
    return tf.string if array.dtype.kind in "SU" else tf.as_dtype(array.dtype)
