"""Checks sorted string tables, the format of V1 checkpoints and of the indices of V2 bundles.

TensorFlow checks the CRC-32C of the blocks that it reads, but loses tensors silently if the index
is damaged: when it lists the keys, it stops without an error at a damaged block after the first. It
also tries to allocate any size that a damaged footer names. This module checks every block first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import cramjam
import google_crc32c

from runner.checkpoints import files
from runner.checkpoints.formats import TABLE_MAGIC

# A table consists of blocks, an index block that lists their positions, and a footer with the
# position of the index block. A block is followed by its compression and its checksum.
_FOOTER, _TRAILER = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_MASK_DELTA = 0xA282EAD8


def require_intact(path: str) -> None:
    """Checks every block of a table.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            _block(file, size, offset, length)


def require_index_block(path: str) -> None:
    """Checks the footer of a table and the block that lists the others; reads no data.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        _index_block(file, files.size(path))


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
    if len(index) < 4:
        raise ValueError("a block of the index is too short")
    (restarts,) = struct.unpack("<I", index[-4:])
    end, position = len(index) - 4 * (restarts + 1), 0
    while position < end:
        _, position = _varint(index, position)
        unshared, position = _varint(index, position)
        length, position = _varint(index, position)
        offset, after = _varint(index, position + unshared)
        yield offset, _varint(index, after)[0]
        position += unshared + length


def _block(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    """Returns a block's content, checked and decompressed."""
    if offset + length + _TRAILER > size:
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")
    file.seek(offset)
    block = file.read(length + _TRAILER)
    (masked,) = struct.unpack_from("<I", block, length + 1)
    if google_crc32c.value(block[: length + 1]) != _unmasked(masked):
        raise ValueError(f"checksum mismatch in the block at byte {offset}")
    compression = block[length]
    if compression == _UNCOMPRESSED:
        return block[:length]
    if compression != _SNAPPY:
        raise ValueError(
            f"the block at byte {offset} is compressed by method {compression}; TensorFlow reads "
            "uncompressed blocks (0) and Snappy (1)"
        )
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
