"""Files of predictions: arrays, lines of JSON, or records of `tf.train.Example`."""

from __future__ import annotations

import json
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError
from runner.system.atomic_files import unfinished

Batch = Mapping[str, NDArray[Any]]


class Writer(ABC):
    """Writes predictions batch by batch.

    Attributes:
      count: how many examples are written.
      shapes: output -> dtype and shape of an example, in words.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shapes: dict[str, str] = {}

    def write(self, batch: Batch) -> None:
        """Writes a batch: output -> array [batch, ...].

        Raises:
          ConfigError: when the outputs differ in length, or do not fit the format.
        """
        sizes = {name: len(array) if array.ndim else 0 for name, array in batch.items()}
        if len(set(sizes.values())) != 1 or not all(sizes.values()):
            shown = ", ".join(f"{name} {array.shape}" for name, array in batch.items())
            raise ConfigError.of(
                f"predict: the outputs are {shown}", "each needs a row for each example"
            )
        if not self.count:
            self.shapes = {
                name: f"{array.dtype.name} {list(array.shape[1:])}" for name, array in batch.items()
            }
        self.count += next(iter(sizes.values()))
        self._write(batch)

    @abstractmethod
    def _write(self, batch: Batch) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Completes the file."""


class _Arrays(Writer):
    """An array for each output; their rows are kept in files until their number is known."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._stack = path, ExitStack()
        self._rows: dict[str, tuple[IO[bytes], NDArray[Any]]] = {}

    def _write(self, batch: Batch) -> None:
        for name, array in batch.items():
            if name not in self._rows:
                path = self._path.with_name(f"{len(self._rows)}.rows")
                self._rows[name] = self._stack.enter_context(path.open("w+b")), array
            rows, first = self._rows[name]
            if array.dtype == object or array.shape[1:] != first.shape[1:]:
                raise ConfigError.of(
                    f"predict: {name} cannot be one array",
                    "its examples differ in shape, or are strings",
                    "write lines: predict.to=FILE.jsonl",
                )
            rows.write(np.ascontiguousarray(array).tobytes())

    def close(self) -> None:
        with self._stack, zipfile.ZipFile(self._path, "w", allowZip64=True) as archive:
            for name, (rows, first) in self._rows.items():
                rows.seek(0)
                header = {
                    "descr": np.lib.format.dtype_to_descr(first.dtype),
                    "fortran_order": False,
                    "shape": (self.count, *first.shape[1:]),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, header)
                    shutil.copyfileobj(rows, entry)


class _Lines(Writer):
    """A line for each example: output -> nested lists; strings are taken for UTF-8."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8")

    def _write(self, batch: Batch) -> None:
        for row in zip(*batch.values(), strict=True):
            values = {name: _plain(value) for name, value in zip(batch, row, strict=True)}
            self._file.write(f"{json.dumps(values, ensure_ascii=False)}\n")

    def close(self) -> None:
        self._file.close()


class _Records(Writer):
    """A `tf.train.Example` for each example: output -> its flat values."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._writer = tf.io.TFRecordWriter(str(path))

    def _write(self, batch: Batch) -> None:
        for row in zip(*batch.values(), strict=True):
            example = tf.train.Example()
            for name, value in zip(batch, row, strict=True):
                flat, feature = np.ravel(value), example.features.feature[name]
                if flat.dtype.kind == "f":
                    feature.float_list.value.extend(flat)
                elif flat.dtype.kind in "biu":
                    feature.int64_list.value.extend(flat.astype(np.int64))
                else:
                    feature.bytes_list.value.extend(flat)
            self._writer.write(example.SerializeToString())

    def close(self) -> None:
        self._writer.close()


_WRITERS: Mapping[str, Callable[[Path], Writer]] = {
    ".npz": _Arrays,
    ".jsonl": _Lines,
    ".tfrecord": _Records,
}


@contextmanager
def writer_of(path: Path) -> Iterator[Writer]:
    """Provides the writer of a file by its suffix; the file appears when the block is complete.

    Raises:
      ConfigError: when nothing was written.
    """
    with unfinished(path) as temporary:
        writer = _WRITERS[path.suffix](temporary)
        try:
            yield writer
        finally:
            writer.close()
        if not writer.count:
            raise ConfigError.of("predict: there is no example to predict for")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value] if value.dtype == object else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
