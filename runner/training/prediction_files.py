"""Files of predictions: arrays, or a table."""

from __future__ import annotations

import csv
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
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
                    "write strings as a table, predict.to=FILE.csv; pad examples to one shape",
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


class _Table(Writer):
    """A line for each example, with a column for each value of an output."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file)
        self._columns: list[str] = []

    def _write(self, batch: Batch) -> None:
        columns = [column for name, array in batch.items() for column in _columns(name, array)]
        if not self._columns:
            self._columns = columns
            self._lines.writerow(columns)
        if columns != self._columns:
            raise ConfigError.of(
                "predict: the outputs are no table",
                "their examples differ in shape",
                "give the outputs one shape, for example by padding",
            )
        for row in zip(*batch.values(), strict=True):
            self._lines.writerow(
                value.decode(errors="replace") if isinstance(value, bytes) else value
                for output in row
                for value in np.ravel(output)
            )

    def close(self) -> None:
        self._file.close()


def _columns(name: str, array: NDArray[Any]) -> list[str]:
    """Returns the name of an output, followed by the indices of each value where it has several."""
    indices = np.ndindex(*array.shape[1:])
    return ["_".join([name, *map(str, index)]) for index in indices]


_WRITERS: Mapping[str, Callable[[Path], Writer]] = {
    ".npz": _Arrays,
    ".csv": _Table,
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
