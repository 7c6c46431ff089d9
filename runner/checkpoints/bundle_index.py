"""Checks the tables of TensorFlow checkpoints, because TensorFlow skips damaged blocks."""

from __future__ import annotations

import functools
import struct
from typing import BinaryIO

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


def _handles(index: bytes) -> list[tuple[int, int]]:
    """Returns (offset, length) of every block that an uncompressed index block lists."""
    if len(index) < 4:
        raise ValueError("the index block is too short")
    (restarts,) = struct.unpack("<I", index[-4:])
    end, position, handles = len(index) - 4 * (restarts + 1), 0, []
    while position < end:
        _, position = _varint(index, position)
        unshared, position = _varint(index, position)
        _, position = _varint(index, position)
        offset, position = _varint(index, position + unshared)
        length, position = _varint(index, position)
        handles.append((offset, length))
    return handles


def _block(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    """Returns a block's content, checked."""
    if offset + length + _TRAILER > size:
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")
    file.seek(offset)
    block = file.read(length + _TRAILER)
    (masked,) = struct.unpack_from("<I", block, length + 1)
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    expected = ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF
    if crc32c(block[: length + 1]) != expected:
        raise ValueError(f"checksum mismatch in the block at byte {offset}")
    return block[:length]


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`; about 15 MB a second."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@functools.cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


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
