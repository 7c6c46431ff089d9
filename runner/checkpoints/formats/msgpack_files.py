"""Flax's `.msgpack` files: parameters of JAX models, as `flax.serialization` writes them.

The format nests maps; an array is an extension of type 1 that holds its shape, dtype and bytes
(`flax/serialization.py`), and one of 1 GB or more is a map of chunks. The library `msgpack` reads
the whole file to list it: 500 MB take 0.2 s, and for a moment twice the memory of the largest
array. Values are read where they are in the file.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import FileReader, Span, TensorSpec, parse_dtype

_ARRAY_TYPES, _COMPLEX = (1, 3), 2  # Arrays and scalars of NumPy; a number of Python.
_CHUNKED = "__msgpack_chunked_array__"
_MAX_DEPTH, _MAX_VALUES = 64, 2_000_000
# The first bytes of maps and lists. The library reads either as it is told to, and does not tell.
_MAPS, _LISTS = (*range(0x80, 0x90), 0xDE, 0xDF), (*range(0x90, 0xA0), 0xDC, 0xDD)


class Array(NamedTuple):
    """An array and where its bytes are; for what cannot be read, `dtype` says what it is."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Span, ...]


class _MsgpackParser:
    """Parses a file to nested dictionaries and lists of arrays and of plain values."""

    def __init__(self, file: BinaryIO, data: mmap.mmap) -> None:
        self._stream = msgpack.Unpacker(file, max_buffer_size=len(data) + 1)
        self._data, self._count = data, 0

    def root(self) -> dict[str, Any]:
        root = self._value(0)
        if self._stream.tell() != len(self._data) or not isinstance(root, dict):
            raise ValueError("it does not hold one map")
        return root

    def _value(self, depth: int) -> Any:
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_VALUES:
            raise ValueError("it is nested too deeply, or holds too many values")
        code = self._data[self._stream.tell()]
        if code in _MAPS:
            return self._map(depth)
        if code in _LISTS:
            return [self._value(depth + 1) for _ in range(self._stream.read_array_header())]
        value = self._stream.unpack()
        if isinstance(value, msgpack.Timestamp):
            return Array((), "time of MessagePack", ())
        if isinstance(value, bytes):
            return Array((), "bytes of MessagePack", ())
        return self._extension(*value) if isinstance(value, msgpack.ExtType) else value

    def _map(self, depth: int) -> dict[str, Any]:
        parsed: dict[str, Any] = {}
        for _ in range(self._stream.read_map_header()):
            key = self._stream.unpack()
            name = key if isinstance(key, str) else repr(key)
            if name in parsed:
                raise ValueError(f"a map has two keys {name!r}")
            parsed[name] = self._value(depth + 1)
        return parsed

    def _extension(self, kind: int, content: bytes) -> Array | None:
        if kind not in _ARRAY_TYPES:
            return None if kind == _COMPLEX else Array((), f"extension {kind} of MessagePack", ())
        shape, dtype, values = msgpack.unpackb(content)
        return _array(shape, dtype, [Span(self._stream.tell() - len(values), len(values))])


class MsgpackReader(FileReader):
    """Reads the file at `path` from a memory map; names join the keys by slashes.

    There are no checksums: only the digest of a pinned file detects a flipped byte.
    """

    format, what = "Flax msgpack", "a .msgpack file of Flax"
    errors = (msgpack.exceptions.UnpackException,)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, Array]]:
        """Opens the file and yields tensor name -> shape, dtype, and where its bytes are."""
        yield self._arrays

    def tensor_spec(self, name: str, entry: Array) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        return TensorSpec(name, entry.shape, entry.dtype)

    def value(self, name: str, entry: Array) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        data = np.memmap(self.path, np.uint8, mode="r")
        pieces = [data[part.start : part.start + part.size] for part in entry.parts]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole.view(parse_dtype(entry.dtype)).reshape(entry.shape)

    @functools.cached_property
    def _arrays(self) -> dict[str, Array]:
        with files.reading(self.path) as file, files.mapped(self.path) as data:
            root = _MsgpackParser(file, data).root()
        arrays: dict[str, Array] = {}
        for name, array in _arrays("", root):
            if name in arrays:
                raise ValueError(f"it names two arrays {name!r}")
            arrays[name] = array
        return arrays


def _arrays(prefix: str, node: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(node, Array):
        yield prefix, node
    elif isinstance(node, dict) and node.get(_CHUNKED) is True:
        yield prefix, _of_chunks(_in_order(node["shape"]), _in_order(node["chunks"]))
    elif isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _arrays(f"{prefix}/{key}" if prefix else str(key), value)


def _of_chunks(shape: list[int], chunks: list[Array]) -> Array:
    if len({chunk.dtype for chunk in chunks}) != 1:
        raise ValueError("the chunks of an array have several types")
    return _array(shape, chunks[0].dtype, [part for chunk in chunks for part in chunk.parts])


def _in_order(numbered: Mapping[str, Any]) -> list[Any]:
    """Returns the list that Flax writes as a map with the keys `0`, `1` and so on."""
    if numbered.keys() != {str(number) for number in range(len(numbered))}:
        raise ValueError("an array lacks some of its chunks")
    return [numbered[str(number)] for number in range(len(numbered))]


def _array(shape: list[int], dtype: str, parts: list[Span]) -> Array:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a shape is {shape!r}")
    if sum(part.size for part in parts) != math.prod(shape) * parse_dtype(dtype).itemsize:
        raise ValueError(f"an array of shape {shape} has too few or too many bytes")
    return Array(tuple(shape), dtype, tuple(parts))
