"""Rewrites TensorFlow's tables, with blocks compressed as other releases wrote them."""

from __future__ import annotations

import cramjam
import google_crc32c

_FOOTER = 48


def stored(content: bytes, compression: int = 0) -> bytes:
    """Returns a block of a table with its trailer; the compression is 0 for none, 1 for Snappy."""
    if compression == 1:
        content = bytes(cramjam.snappy.compress_raw(content))
    block = content + bytes([compression])
    checksum = int(google_crc32c.value(block))
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return block + masked.to_bytes(4, "little")


def recompressed(table: bytes, compression: int) -> bytes:
    """Returns a table of uncompressed blocks with its blocks compressed."""
    rewritten = bytearray()

    def put(content: bytes) -> bytes:
        block = stored(content, compression)
        handle = _varint(len(rewritten)) + _varint(len(block) - 5)
        rewritten.extend(block)
        return handle

    (meta, meta_size, at, size), _ = _varints(table, len(table) - _FOOTER, 4)
    index = table[at : at + size]
    entries, key, position = b"", b"", 0
    end = len(index) - 4 * (int.from_bytes(index[-4:], "little") + 1)
    while position < end:
        (shared, unshared, length), position = _varints(index, position, 3)
        key = key[:shared] + index[position : position + unshared]
        (at, size), _ = _varints(index, position + unshared, 2)
        handle = put(table[at : at + size])
        entries += b"\0" + _varint(len(key)) + _varint(len(handle)) + key + handle
        position += unshared + length
    one_restart_at_the_start = bytes(4) + (1).to_bytes(4, "little")
    footer = put(table[meta : meta + meta_size]) + put(entries + one_restart_at_the_start)
    return bytes(rewritten) + footer.ljust(_FOOTER - 8, b"\0") + table[-8:]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _varints(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    numbers = []
    for _ in range(count):
        value = shift = 0
        while data[position] > 0x7F:
            value |= (data[position] & 0x7F) << shift
            position, shift = position + 1, shift + 7
        numbers.append(value | data[position] << shift)
        position += 1
    return numbers, position
