"""Digests by which a pinned checkpoint is known again."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from runner.checkpoints import files

_CHUNK = 1 << 22


def of_file(path: str) -> str:
    """Returns `sha256:<hex>` of a file's bytes, 4 MB in memory at a time.

    A file that has not changed since is not read again in this process.

    Raises:
      OSError: when the file cannot be read.
    """
    return _of_file(path, files.stamp(path))


def of_parts(parts: Iterable[str]) -> str:
    """Returns `sha256:<hex>` of texts in their order, e.g. of the digests of several files."""
    return _label(hashlib.sha256("\n".join(parts).encode()))


@functools.lru_cache(maxsize=256)
def _of_file(path: str, stamp: str) -> str:
    hashed = hashlib.sha256()
    with files.reading(path) as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return _label(hashed)


def _label(hashed: hashlib._Hash) -> str:
    return f"sha256:{hashed.hexdigest()}"
