"""What the formats inside zip archives share: their checksums."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator

# A damaged archive makes zipfile raise any of these.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
)

_CHUNK = 1 << 22


def checksums(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yields name, size and CRC-32 of every member, from the directory of the archive alone."""
    for member in sorted(archive.infolist(), key=lambda each: each.filename):
        yield f"{member.filename} {member.file_size} {member.CRC:08x}"


def require_intact(archive: zipfile.ZipFile, name: str) -> None:
    """Reads a member through, 4 MB at a time.

    Raises:
      zipfile.BadZipFile: when its bytes do not have the CRC-32 that the archive says.
    """
    with archive.open(name) as member:
        while member.read(_CHUNK):
            pass
