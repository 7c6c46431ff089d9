"""Flax's `.msgpack` files: parameters of JAX models, as `flax.serialization` writes them.

The format nests maps; an array is an extension of type 1 that holds its shape, dtype and bytes
(`flax/serialization.py`), and one of 1 GB or more is a map of chunks. A small reader of MessagePack
finds where the bytes are without reading them, which the library `msgpack` cannot.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import FileReader, Span, TensorSpec, parse_dtype

_ARRAY_TYPES, _COMPLEX = (1, 3), 2  # Arrays and scalars of NumPy; a number of Python.
_CHUNKED = "__msgpack_chunked_array__"
_MAX_DEPTH, _MAX_VALUES = 64, 2_000_000
# The first byte of a value -> the `struct` format of the number, or of the length, that follows.
_NUMBERS = dict(zip(range(0xCA, 0xD4), (f">{form}" for form in "fdBHIQbhiq"), strict=True))
_LENGTHS = {
    **dict(zip((0xC4, 0xC5, 0xC6), (">B", ">H", ">I"), strict=True)),  # bytes
    **dict(zip((0xC7, 0xC8, 0xC9), (">B", ">H", ">I"), strict=True)),  # extensions
    **dict(zip((0xD9, 0xDA, 0xDB), (">B", ">H", ">I"), strict=True)),  # strings
    **dict(zip((0xDC, 0xDD), (">H", ">I"), strict=True)),  # arrays
    **dict(zip((0xDE, 0xDF), (">H", ">I"), strict=True)),  # maps
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


@dataclass(frozen=True)
class Extension:
    """A value of an extension type; of an array, the list of shape, dtype and bytes."""

    kind: int
    content: Any


Array: TypeAlias = tuple[tuple[int, ...], str, tuple[Span, ...]]


class _MsgpackParser:
    """Parses one value; strings and numbers are decoded, bytes are only located."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.position, self._count = data, 0, 0

    def value(self, depth: int = 0) -> Any:
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_VALUES:
            raise ValueError("it is nested too deeply, or holds too many values")
        code = self._number(">B")
        if code <= 0x7F or code >= 0xE0:
            return code if code <= 0x7F else code - 0x100
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        length = int(self._number(_LENGTHS[code])) if code in _LENGTHS else code & 0x0F
        if code <= 0x8F or code in (0xDE, 0xDF):
            return self._map(length, depth)
        if code <= 0x9F or code in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(length)]
        if code <= 0xBF or code in (0xD9, 0xDA, 0xDB):
            text = self._skip(length if code in _LENGTHS else code & 0x1F)
            return self._data[text.start : text.start + text.size].decode()
        if code in (0xC4, 0xC5, 0xC6):
            return self._skip(length)
        if code in (0xC7, 0xC8, 0xC9):
            return self._extension(length, depth)
        if 0xD4 <= code <= 0xD8:
            return self._extension(1 << (code - 0xD4), depth)
        raise ValueError(f"byte {code:#x} begins no value")

    def _number(self, form: str) -> Any:
        size = struct.calcsize(form)
        (number,) = struct.unpack(form, self._data[self.position : self.position + size])
        self.position += size
        return number

    def _skip(self, size: int) -> Span:
        start = self.position
        self.position += size
        if self.position > len(self._data):
            raise ValueError("it ends within a value")
        return Span(start, size)

    def _map(self, length: int, depth: int) -> dict[str, Any]:
        parsed: dict[str, Any] = {}
        for _ in range(length):
            key = self.value(depth + 1)
            name = key if isinstance(key, str) else repr(key)
            if name in parsed:
                raise ValueError(f"a map has two keys {name!r}")
            parsed[name] = self.value(depth + 1)
        return parsed

    def _extension(self, size: int, depth: int) -> Extension:
        kind = self._number(">b")
        start = self.position
        content = self.value(depth + 1) if kind in _ARRAY_TYPES else None
        self.position = start
        self._skip(size)
        return Extension(kind, content)


class MsgpackReader(FileReader):
    """Reads the file at `path` from a memory map; names join the keys by slashes.

    There are no checksums: only the digest of a pinned file detects a flipped byte.
    """

    format, what, errors = "Flax msgpack", "a .msgpack file of Flax", (struct.error,)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, Array]]:
        """Opens the file and yields tensor name -> shape, dtype, and where its bytes are."""
        yield self._arrays

    def tensor_spec(self, name: str, entry: Array) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        shape, dtype, _ = entry
        return TensorSpec(name, shape, dtype)

    def value(self, name: str, entry: Array) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        shape, dtype, parts = entry
        data = np.memmap(self.path, np.uint8, mode="r")
        pieces = [data[part.start : part.start + part.size] for part in parts]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole.view(parse_dtype(dtype)).reshape(shape)

    @functools.cached_property
    def _arrays(self) -> dict[str, Array]:
        with files.mapped(self.path) as data:
            parser = _MsgpackParser(data)
            root = parser.value()
            if parser.position != len(data) or not isinstance(root, dict):
                raise ValueError("it does not hold one map")
        arrays: dict[str, Array] = {}
        for name, array in _arrays("", root):
            if name in arrays:
                raise ValueError(f"it names two arrays {name!r}")
            arrays[name] = array
        return arrays


def _arrays(prefix: str, node: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(node, Extension) and node.kind in _ARRAY_TYPES:
        yield prefix, _array([node])
    elif isinstance(node, dict) and node.get(_CHUNKED) is True:
        shape, chunks = node["shape"], node["chunks"]
        names = [str(number) for number in range(len(chunks))]
        if chunks.keys() != {*names}:
            raise ValueError(f"{prefix} lacks some of its chunks")
        flat = _array([chunks[name] for name in names])
        yield prefix, _checked(tuple(shape[str(at)] for at in range(len(shape))), *flat[1:])
    elif isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _arrays(f"{prefix}/{key}" if prefix else str(key), value)
    elif isinstance(node, Span):
        yield prefix, ((), "bytes of MessagePack", ())
    elif isinstance(node, Extension) and node.kind != _COMPLEX:
        yield prefix, ((), f"extension {node.kind} of MessagePack", ())


def _array(chunks: list[Extension]) -> Array:
    """Returns an array of one chunk, or the flat one of several."""
    contents = [chunk.content for chunk in chunks]
    shape = contents[0][0] if len(contents) == 1 else [sum(size for ((size,), _, _) in contents)]
    if len({dtype for _, dtype, _ in contents}) > 1:
        raise ValueError("the chunks of an array have several types")
    return _checked(tuple(shape), contents[0][1], tuple(data for _, _, data in contents))


def _checked(shape: tuple[int, ...], dtype: str, parts: tuple[Span, ...]) -> Array:
    if not all(type(size) is int for size in shape):
        raise ValueError(f"a shape is {shape!r}")
    expected = math.prod(shape) * parse_dtype(dtype).itemsize
    if min(shape, default=0) < 0 or sum(part.size for part in parts) != expected:
        raise ValueError(f"an array of shape {list(shape)} has too few or too many bytes")
    return shape, dtype, parts
