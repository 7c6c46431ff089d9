"""Checks the checksums of a bundle's `.index` file, because TensorFlow skips damaged blocks."""

from __future__ import annotations

import functools
import struct

from runner.checkpoints import files

# A bundle's index is a sorted string table of blocks. When TensorFlow lists its keys and meets a
# damaged block it stops there without an error, so that tensors would seem never to have been
# saved. The first block is checked when the bundle is opened; every other block is checked here.
_BLOCK_SIZE = 1 << 18
_FOOTER = 48
_TRAILER = 5
_MASK_DELTA = 0xA282EAD8


def require_intact(path: str) -> None:
    """Checks every block of an index of more than one block; there is nothing to do for others.

    Args:
      path: the `.index` file.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when a block is damaged.
    """
    if files.size(path) <= _BLOCK_SIZE:
        return
    with files.reading(path) as file:
        table = file.read()
    for offset, size in _blocks(table):
        _block(table, offset, size)


def _blocks(table: bytes) -> list[tuple[int, int]]:
    """Returns (offset, size) of every block that holds entries."""
    position = len(table) - _FOOTER
    for _ in range(2):
        _, position = _varint(table, position)
    offset, position = _varint(table, position)
    size, _ = _varint(table, position)
    index = _block(table, offset, size)
    if len(index) < 4:
        raise ValueError("the index block is too short")
    (restarts,) = struct.unpack("<I", index[-4:])
    end, position, blocks = len(index) - 4 * (restarts + 1), 0, []
    while position < end:
        _, position = _varint(index, position)
        unshared, position = _varint(index, position)
        _, position = _varint(index, position)
        at, after = _varint(index, position + unshared)
        length, position = _varint(index, after)
        blocks.append((at, length))
    return blocks


def _block(table: bytes, offset: int, size: int) -> bytes:
    """Returns a block's content, checked."""
    end = offset + size
    if end + _TRAILER > len(table):
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")
    if table[end] != 0:
        raise ValueError(f"the block at byte {offset} is compressed, which bundles never are")
    (masked,) = struct.unpack_from("<I", table, end + 1)
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    expected = ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF
    if crc32c(table[offset : end + 1]) != expected:
        raise ValueError(f"checksum mismatch in the block at byte {offset}")
    return table[offset:end]


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
