"""Files of word vectors: GloVe's text, and word2vec's text and binary files.

A file is one tensor, `vectors`, with a row for each token in the file's order. The file also serves
as its own vocabulary, see `tokens`.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import FileReader, TensorSpec
from runner.checkpoints.recognition import NUMBER, VECTORS_HEADER

VECTORS = "vectors"
_NUMBER = re.compile(NUMBER)
_HEAD = 64 << 10
# So many bytes of text are parsed at once.
_BLOCK = 4 << 20


@dataclass(frozen=True)
class VectorLayout:
    """How a file stores its vectors.

    Attributes:
      rows, columns: the number of tokens, and of numbers for each.
      start: where the first token begins.
      is_binary: whether numbers are stored as little-endian float32 instead of text.
    """

    rows: int
    columns: int
    start: int
    is_binary: bool


class WordVectorsReader(FileReader):
    """Reads the file at `path`; text is parsed when values are read."""

    format, what = "word vectors", "a file of word vectors"

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, VectorLayout]]:
        """Opens the file and yields `vectors` -> how it is stored."""
        yield {VECTORS: self._layout}

    def tensor_spec(self, name: str, entry: VectorLayout) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        return TensorSpec(name, (entry.rows, entry.columns), "float32")

    def value(self, name: str, entry: VectorLayout) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        values = np.empty((entry.rows, entry.columns), np.float32)
        with files.mapped(self.path) as data:
            if entry.is_binary:
                for row, (_, start) in enumerate(_binary_rows(data, entry)):
                    values[row] = np.frombuffer(data, "<f4", entry.columns, start)
            else:
                _parse(data, entry, values)
        return values

    @functools.cached_property
    def _layout(self) -> VectorLayout:
        with files.mapped(self.path) as data:
            return _layout(data)


def tokens(path: str) -> tuple[str, ...]:
    """Returns the tokens of a file of word vectors, in the order of its rows.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.mapped(path) as data:
        layout = _layout(data)
        if layout.is_binary:
            tokens = [token for token, _ in _binary_rows(data, layout)]
        else:
            tokens = [_token(line, layout) for line in _lines(data, layout)]
    return tuple(token.decode(errors="replace") for token in tokens)


def _layout(data: mmap.mmap) -> VectorLayout:
    head = data[:_HEAD]
    header = VECTORS_HEADER.match(head)
    row = _count_numbers(head, header.end() if header else 0)
    if header is None:
        if row == 0:
            raise ValueError("its first line is not a token and its vector")
        blocks = range(0, len(data), _BLOCK)
        lines = sum(data[at : at + _BLOCK].count(b"\n") for at in blocks) + (data[-1:] != b"\n")
        return VectorLayout(lines, columns=row, start=0, is_binary=False)
    rows, columns = int(header[1]), int(header[2])
    is_binary = row < columns
    # A number takes four bytes, or as text at least two.
    if rows * columns * (4 if is_binary else 2) > len(data):
        raise ValueError(f"it is too short for {rows:,} vectors of {columns:,} numbers")
    return VectorLayout(rows, columns, header.end(), is_binary)


def _count_numbers(head: bytes, start: int) -> int:
    """Returns how many numbers end the line that begins at `start`, after a token."""
    end = head.find(b"\n", start)
    fields = head[start : max(end, start)].rstrip(b"\r ").split(b" ")[1:]
    is_other = (not _NUMBER.fullmatch(field) for field in reversed(fields))
    return next((count for count, other in enumerate(is_other) if other), len(fields))


def _binary_rows(data: mmap.mmap, layout: VectorLayout) -> Iterator[tuple[bytes, int]]:
    """Yields each token and where its vector begins."""
    position, size = layout.start, 4 * layout.columns
    for row in range(layout.rows):
        end = data.find(b" ", position)
        if end < 0 or end + 1 + size > len(data):
            raise ValueError(f"it ends within vector {row:,} of {layout.rows:,}")
        yield data[position:end].lstrip(b"\n"), end + 1
        position = end + 1 + size
    _require_end(data, position, layout)


def _lines(data: mmap.mmap, layout: VectorLayout) -> Iterator[bytes]:
    position, longest = layout.start, _HEAD + 64 * layout.columns
    for row in range(layout.rows):
        end = data.find(b"\n", position, position + longest)
        if end < 0 and len(data) - position > longest:
            raise ValueError(f"vector {row:,} of {layout.rows:,} takes more than {longest:,} bytes")
        line = data[position : end if end >= 0 else len(data)].rstrip(b"\r ")
        if line.count(b" ") < layout.columns:
            raise ValueError(f"vector {row:,} of {layout.rows:,} has too few numbers")
        yield line
        position = end + 1 if end >= 0 else len(data)
    _require_end(data, position, layout)


def _require_end(data: mmap.mmap, position: int, layout: VectorLayout) -> None:
    """Checks that nothing but line ends follows the last vector."""
    if data[position : position + _HEAD].strip():
        raise ValueError(f"it holds more than the {layout.rows:,} vectors of its first line")


def _token(line: bytes, layout: VectorLayout) -> bytes:
    if line.count(b" ") == layout.columns:
        return line.partition(b" ")[0]
    return line.rsplit(b" ", layout.columns)[0]  # A token that holds spaces.


def _parse(data: mmap.mmap, layout: VectorLayout, values: NDArray[np.float32]) -> None:
    """Parses the text of all vectors into `values`, a block of lines at a time."""
    pending: list[bytes] = []
    size = first = 0
    for row, line in enumerate(_lines(data, layout)):
        pending.append(line[len(_token(line, layout)) :])
        size += len(line)
        if size >= _BLOCK or row == layout.rows - 1:
            try:
                parsed: NDArray[Any] = np.fromstring(b"".join(pending), np.float32, sep=" ")
                # NumPy 1.26 only warns of what is no number, and returns the numbers before it.
                values[first : row + 1] = parsed.reshape(len(pending), layout.columns)
            except ValueError as error:
                span = f"{first + 1:,} to {row + 1:,}"
                raise ValueError(f"one of its vectors {span} holds no number") from error
            pending, size, first = [], 0, row + 1
