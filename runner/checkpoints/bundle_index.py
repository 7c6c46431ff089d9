"""Checks the tables of TensorFlow checkpoints, because TensorFlow skips damaged blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files

# A bundle's index, like a V1 checkpoint, is a sorted string table: blocks with checksums, a block
# that says where they are, and a footer that says where that one is. When TensorFlow lists the
# keys and meets a damaged block after the first it stops there without an error, so that tensors
# would seem never to have been saved; and what a damaged footer says, it tries to allocate.
_FOOTER = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER = 5
_MASK_DELTA = 0xA282EAD8


def require_intact(path: str) -> None:
    """Checks every block of the `.index` file of a bundle.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            _block(file, size, offset, length)


def entries(path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of the `.index` file of a bundle, in their order.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged, or compressed, which TensorFlow does not do.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            yield from _pairs(_block(file, size, offset, length))


def require_index_block(path: str) -> None:
    """Checks the footer of a V1 checkpoint and the block that it leads to; reads no data.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        _index_block(file, files.size(path))


def _index_block(file: BinaryIO, size: int) -> bytes:
    """Returns the checked block that says where the others are."""
    if size < _FOOTER:
        raise ValueError("it is too short to be a table")
    file.seek(size - _FOOTER)
    footer = file.read(_FOOTER)
    if not footer.endswith(_MAGIC):
        raise ValueError("it does not end like a table: it is cut off or something else")
    position = 0
    for _ in range(2):
        _, position = _varint(footer, position)
    offset, position = _varint(footer, position)
    length, _ = _varint(footer, position)
    return _block(file, size, offset, length)


def _handles(index: bytes) -> Iterator[tuple[int, int]]:
    """Yields (offset, length) of every block that an index block lists."""
    for _, value in _pairs(index):
        offset, position = _varint(value, 0)
        yield offset, _varint(value, position)[0]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of an uncompressed block."""
    if len(block) < 4:
        raise ValueError("a block of the index is too short")
    (restarts,) = struct.unpack("<I", block[-4:])
    end, position, key = len(block) - 4 * (restarts + 1), 0, b""
    while position < end:
        shared, position = _varint(block, position)
        unshared, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


def _block(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    """Returns a block's content, checked."""
    if offset + length + _TRAILER > size:
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")
    file.seek(offset)
    block = file.read(length + _TRAILER)
    (masked,) = struct.unpack_from("<I", block, length + 1)
    if crc32c(block[: length + 1]) != unmasked(masked):
        raise ValueError(f"checksum mismatch in the block at byte {offset}")
    return block[:length]


def crc32c(data: bytes | NDArray[np.uint8], before: int = 0) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`, which follows what has the CRC `before`."""
    return int(google_crc32c.extend(before, data))


def unmasked(masked: int) -> int:
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
