"""Checks sorted string tables, the format of V1 checkpoints and of the indices of V2 bundles.

TensorFlow checks the CRC-32C of the blocks that it reads, but loses tensors silently if the index
is damaged: when it lists the keys, it stops without an error at a damaged block after the first. It
also tries to allocate any size that a damaged footer names. This module checks every block first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import cramjam
import google_crc32c
import tensorflow as tf

from runner.checkpoints import files
from runner.checkpoints.recognition import TABLE_MAGIC
from runner.internals.tensorflow import TensorShapeProto, TensorSliceProto

# A table consists of blocks, an index block that lists their positions, and a footer with the
# position of the index block. A block is followed by its compression and its checksum.
_FOOTER, _TRAILER = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_MASK_DELTA = 0xA282EAD8
# TensorFlow writes index blocks of 256 KB, and Snappy shrinks at most 64 bytes to 3.
_MAX_BLOCK, _MAX_SNAPPY_RATIO = 64 << 20, 22
# TensorFlow's limits; elements of up to 16 bytes stay countable.
_MAX_RANK, _MAX_ELEMENTS = 254, (1 << 63) // 16
_CHUNK = 4 << 20


def require_intact(path: str) -> None:
    """Checks every block of a table, with a small part of it in memory at a time.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            _require_inside(size, offset, length)
            _check_sum(file, offset, length)


def entries(path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields each key of a table with its value, and checks every block.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            yield from _entries(_block(file, size, offset, length))


def first_value(path: str) -> bytes:
    """Returns the value of the first key of a table; it may begin a block of several gigabytes.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged, or the value is too large.
    """
    with files.reading(path) as file:
        size = files.size(path)
        offset, length = next(_handles(_index_block(file, size)), (0, 0))
        if length <= _MAX_BLOCK:
            block = _block(file, size, offset, length)
        else:
            file.seek(offset)
            block = file.read(_MAX_BLOCK)
        _, value = next(_entries(block, end=len(block)), (b"", b""))
        return value


def _index_block(file: BinaryIO, size: int) -> bytes:
    """Returns the content of the block that lists the others."""
    if size < _FOOTER:
        raise ValueError("it is too short to be a table")
    file.seek(size - _FOOTER)
    footer = file.read(_FOOTER)
    if not footer.endswith(TABLE_MAGIC):
        raise ValueError("it does not end like a table: it is cut off or something else")
    position = 0
    for _ in range(2):
        _, position = _varint(footer, position)
    offset, position = _varint(footer, position)
    length, _ = _varint(footer, position)
    return _block(file, size, offset, length)


def _handles(index: bytes) -> Iterator[tuple[int, int]]:
    """Yields (offset, length) of every block that the block `index` lists."""
    for _, handle in _entries(index):
        offset, position = _varint(handle, 0)
        yield offset, _varint(handle, position)[0]


def _entries(block: bytes, end: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values in a block, up to its list of restarts or to `end`."""
    if len(block) < 4:
        raise ValueError("a block of the index is too short")
    if end is None:
        (restarts,) = struct.unpack("<I", block[-4:])
        end = len(block) - 4 * (restarts + 1)
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        unshared, position = _varint(block, position)
        length, position = _varint(block, position)
        start = position + unshared
        if start + length > end or shared > len(key):
            raise ValueError("an entry of the index reaches beyond its block")
        key = key[:shared] + block[position:start]
        position = start + length
        yield key, block[start:position]


def _require_inside(size: int, offset: int, length: int) -> None:
    if offset + length + _TRAILER > size:
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")


def _check_sum(file: BinaryIO, offset: int, length: int) -> None:
    """Compares a block with its checksum."""
    file.seek(offset)
    actual, remaining = 0, length + 1
    while remaining:
        chunk = file.read(min(remaining, _CHUNK))
        if not chunk:
            raise ValueError(f"the block at byte {offset} cannot be read")
        actual, remaining = google_crc32c.extend(actual, chunk), remaining - len(chunk)
    (masked,) = struct.unpack("<I", file.read(4))
    if actual != _unmasked(masked):
        raise ValueError(f"checksum mismatch in the block at byte {offset}")


def _block(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    """Returns a block's content, checked and decompressed."""
    _require_inside(size, offset, length)
    if length > _MAX_BLOCK:
        raise ValueError(f"the block at byte {offset} is larger than {_MAX_BLOCK:,} bytes")
    _check_sum(file, offset, length)
    file.seek(offset)
    block = file.read(length + 1)
    compression = block[length]
    if compression == _UNCOMPRESSED:
        return block[:length]
    if compression != _SNAPPY:
        raise ValueError(
            f"the block at byte {offset} is compressed by method {compression}; TensorFlow reads "
            "uncompressed blocks (0) and Snappy (1)"
        )
    # A failed allocation of the library ends the process.
    if _varint(block, 0)[0] > _MAX_SNAPPY_RATIO * length:
        raise ValueError(f"the block at byte {offset} unpacks to more than Snappy can hold")
    try:
        return bytes(cramjam.snappy.decompress_raw(block[:length]))
    except cramjam.DecompressionError as error:
        raise ValueError(f"the block at byte {offset} cannot be decompressed: {error}") from error


def _unmasked(masked: int) -> int:
    """Returns the CRC that TensorFlow stores `masked`."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the integer at `position` and the position after it."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a length in the index is damaged")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def require_possible(
    name: str, shape: TensorShapeProto, dtype: int, slices: Iterable[TensorSliceProto]
) -> None:
    """Checks a tensor's shape and type in an index, and the slices of a partitioned variable.

    TensorFlow ends the process at a negative size, at more elements than it can count and at a type
    of no values.

    Raises:
      ValueError: when there can be no such tensor.
    """
    sizes = [dim.size for dim in shape.dim]
    if shape.unknown_rank or len(sizes) > _MAX_RANK or min(sizes, default=0) < 0:
        raise ValueError(f"{name} has an impossible shape")
    if math.prod(size or 1 for size in sizes) > _MAX_ELEMENTS:
        raise ValueError(f"{name} has an impossible number of elements")
    for part in slices:
        extents = [(extent.start, extent.length) for extent in part.extent]
        bounded = zip(extents, sizes, strict=False)
        inside = all(
            start >= 0 and 0 <= length <= size - start for (start, length), size in bounded
        )
        if len(extents) != len(sizes) or not inside:
            raise ValueError(f"{name} has a slice outside its shape")
    try:
        value_type = tf.as_dtype(dtype)
    except TypeError:
        value_type = None
    if value_type is None or value_type != value_type.base_dtype:
        raise ValueError(f"{name} has the unknown type {dtype}")
