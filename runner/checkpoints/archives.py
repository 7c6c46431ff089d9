"""Zip archives from untrusted sources, opened with bounded memory."""

from __future__ import annotations

import contextlib
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from runner.checkpoints import files

# Room for 100,000 members. `zipfile` holds fifty times as much in memory.
_MAX_DIRECTORY = 12 << 20
# Weights hardly shrink when they are compressed; arrays of zeros do, to a thousandth.
_MAX_UNPACKED, _MAX_RATIO = 256 << 20, 100
# The header before a member; at its end are the sizes of the name and the extra field after it.
_HEADER = struct.Struct("<26xHH")


@contextlib.contextmanager
def opened_archive(path: str) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive whose directory and members take a bounded amount of memory.

    Raises:
      OSError: when it cannot be read.
      zipfile.BadZipFile: when it is damaged, or would unpack to much more than its size.
    """
    with files.reading(path) as file:
        bounded = _BoundedReads(file)
        with zipfile.ZipFile(bounded) as archive:
            bounded.limit = None
            for member in archive.infolist():
                # `zipfile` unpacks bzip2 and LZMA without a limit.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise zipfile.BadZipFile(
                        f"{member.filename} is compressed by method {member.compress_type}; "
                        "stored (0) and deflated (8) members are read"
                    )
            unpacked = sum(member.file_size for member in archive.infolist())
            if excess := implausible(unpacked, files.size(path)):
                raise zipfile.BadZipFile(excess)
            yield archive


def implausible(declared: int, stored: int) -> str:
    """Describes a file that declares far more bytes of tensors than it stores, or returns "".

    To read such a file could take all memory.
    """
    if declared <= max(_MAX_UNPACKED, _MAX_RATIO * stored):
        return ""
    return (
        f"it declares {declared:,} bytes and stores {stored:,}; above {_MAX_UNPACKED >> 20} MB at "
        f"most {_MAX_RATIO} times as much is read"
    )


class _BoundedReads:
    """A file from which no more than `limit` bytes are read at once."""

    limit: int | None = _MAX_DIRECTORY

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if self.limit is not None and size > self.limit:
            raise zipfile.BadZipFile(f"its directory is larger than {self.limit:,} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def stored_at(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Returns where the bytes of an uncompressed member begin, which only its header says.

    Raises:
      zipfile.BadZipFile: when it is compressed or encrypted, or not where the directory says.
    """
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise zipfile.BadZipFile(f"{member.filename} is compressed or encrypted")
    file.seek(member.header_offset)
    header = file.read(_HEADER.size)
    if header[:4] != b"PK\x03\x04" or len(header) < _HEADER.size:
        raise zipfile.BadZipFile(f"{member.filename} is not where the zip directory says")
    name, extra = _HEADER.unpack(header)
    return member.header_offset + _HEADER.size + int(name) + int(extra)


def digest_of_archive(path: str) -> str:
    """Returns the digest of the name, size and CRC-32 of every member of a zip archive."""
    with opened_archive(path) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.filename)
    return files.digest_of_parts(
        f"{member.filename} {member.file_size} {member.CRC:08x}" for member in members
    )
