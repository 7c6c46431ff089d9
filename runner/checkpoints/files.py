"""Files on this machine, and the copies of remote ones; their digests."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob
import hashlib
import mmap
import os
import shutil
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from runner.checkpoints import remote
from runner.errors import CheckpointError
from runner.system.locks import locked

CACHE = "RUNNER_CACHE"
# Fits into the processor's cache from reading to hashing.
_HASHED = 256 << 10
# Indices of 100,000 tensors take a third of it.
MAX_TEXT = 32 << 20
# The exceptions of h5py, zipfile and NumPy on damaged files; TensorFlow, protobuf and safetensors
# raise others as well.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,  # and RecursionError, on deeply nested JSON
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def is_remote(path: str) -> bool:
    """Returns whether `path` has a scheme, e.g. `gs://bucket/file`."""
    return "://" in path


def exists(path: str) -> bool:
    """Returns whether there is a file or directory at `path`."""
    return remote.exists(path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    """Returns whether `path` is a directory."""
    return remote.is_directory(path) if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Returns whether `path` exists and is not a directory."""
    return exists(path) and not is_directory(path)


def names_in(directory: str) -> list[str]:
    """Returns the names of a directory's entries, sorted, without trailing slashes.

    Raises:
      OSError: when it cannot be listed.
    """
    is_local = not is_remote(directory)
    return sorted(os.listdir(directory or ".") if is_local else remote.names_in(directory))


def matching(directory: str, pattern: str) -> list[str]:
    """Returns the paths of the entries of `directory` whose names match the glob `pattern`."""
    if not is_directory(directory or "."):
        return []
    return [os.path.join(directory, name) for name in fnmatch.filter(names_in(directory), pattern)]


def size(path: str) -> int:
    """Returns a file's size in bytes.

    Raises:
      OSError: when there is no such file.
    """
    return os.stat(local_copy(path)).st_size


def stamp(path: str) -> str:
    """Returns a string that changes when a file is replaced or written to.

    It is made of the size and the modification time. For a file on this machine it also has the
    inode, and the time of the last change to it, which no program can set.

    Raises:
      OSError: when there is no such file.
    """
    if is_remote(path):
        return remote.stamp(path)
    status = os.stat(path)
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}:{status.st_ctime_ns}"


def require_regular(path: str) -> None:
    """Checks that a file can be opened: a pipe would wait for a writer, a device never end.

    Raises:
      OSError: when there is no such file, or it is neither a regular file nor a directory.
    """
    if is_remote(path):
        return
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, not a regular file", path)


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a regular file for reading bytes; of a remote one, the copy on this machine.

    Raises:
      OSError: when it cannot be opened or read.
    """
    path = local_copy(path)
    require_regular(path)
    with open(path, "rb") as file:
        yield file


@contextlib.contextmanager
def mapped(path: str, size: int = 0) -> Iterator[mmap.mmap]:
    """Opens a memory map of the first `size` bytes of a local file, by default of all.

    Raises:
      OSError: when it cannot be opened.
      ValueError: when it is empty.
    """
    with reading(path) as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        yield data


def read_bytes(path: str, limit: int = MAX_TEXT) -> bytes:
    """Returns the content of a file of at most `limit` bytes.

    Raises:
      OSError: when it cannot be read, or is larger.
    """
    with reading(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(
            errno.EFBIG, f"it is larger than {limit:,} bytes, the most that is read", path
        )
    return content


def read_text(path: str, limit: int = MAX_TEXT) -> str:
    """Returns the text of a file of at most `limit` bytes.

    Raises:
      OSError: when it cannot be read, or is larger.
      UnicodeDecodeError: when it is not UTF-8.
    """
    return read_bytes(path, limit).decode()


def read_end(path: str, count: int) -> bytes:
    """Returns the last `count` bytes of a file, or all of a shorter one.

    Raises:
      OSError: when it cannot be read.
    """
    with reading(path) as file:
        file.seek(max(0, size(path) - count))
        return file.read(count)


def digest_of_file(path: str) -> str:
    """Returns `sha256:<hex>` of a file's bytes, with a small part in memory at a time.

    This process reads a file again only if it has changed.

    Raises:
      OSError: when the file cannot be read.
    """
    return _digest_of_file(path, stamp(path))


def digest_later(path: str, digest: Callable[[str], str] = digest_of_file) -> Callable[[], str]:
    """Returns a function that computes the digest of a file when it is called.

    Reading all of a large file takes minutes, and few callers need its digest. The function raises
    a CheckpointError when the file has changed in the meantime, or cannot be read.

    Raises:
      OSError: when there is no such file.
    """
    opened = stamp(path)

    @functools.cache
    def content() -> str:
        try:
            if stamp(path) == opened:
                return digest(path)
            cause = "it has changed since it was opened"
        except OSError as error:
            cause = str(error)
        remedy = "open it again, or restore the file from a copy"
        raise CheckpointError.of(f"the digest of {path} cannot be computed", cause, remedy)

    return content


def digest_of_parts(parts: Iterable[str]) -> str:
    """Returns `sha256:<hex>` of strings in their order, e.g. the digests of several files."""
    joined = "\n".join(parts).encode()
    return f"sha256:{hashlib.sha256(joined).hexdigest()}"


@functools.lru_cache(maxsize=256)
def _digest_of_file(path: str, stamp: str) -> str:
    hashed = hashlib.sha256()
    with reading(path) as file:
        while chunk := file.read(_HASHED):
            hashed.update(chunk)
    return f"sha256:{hashed.hexdigest()}"


def cache_directory() -> Path:
    """Returns the directory of copies: `$RUNNER_CACHE`, by default `~/.cache/runner`.

    Every file in it can be deleted at any time between runs.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get(CACHE) or os.path.join(home, "runner"))


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """Returns the directory of the cache for `key`, filled by `fill` now or earlier.

    A directory appears only when it is complete, and only one process fills it.
    """
    folder = cache_directory() / hashlib.sha256(key.encode()).hexdigest()[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(f"{folder}.lock", f"a copy of {key.splitlines()[0]}"):
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            fill(partial)
            partial.replace(folder)
    return folder


def local_copy(path: str) -> str:
    """Returns `path`, or the path of a local copy of a remote checkpoint.

    A checkpoint is a file, a directory, a bundle's prefix or the pattern of a V1 checkpoint's
    shards. It is copied again when the size or version of a file has changed.

    Raises:
      CheckpointError: when it cannot be copied.
    """
    if not is_remote(path):
        return path

    def copy(folder: Path) -> None:
        for name, source in parts.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            remote.copy(source, str(target))

    try:
        parts = _parts(path)
        stamps = (f"{source} {stamp(source)}" for source in parts.values())
        return str(cached("\n".join((path, *stamps)), copy) / _name(path))
    except OSError as error:
        raise CheckpointError.of(
            f"{path} cannot be copied to {cache_directory()}",
            str(error),
            f"correct the path, or set {CACHE} to a directory with room for the file",
        ) from error


def _parts(path: str) -> dict[str, str]:
    """Returns the files of a remote checkpoint: name in the copy -> path."""
    name = _name(path)
    if is_directory(path):
        entries = (os.path.join(path, entry) for entry in names_in(path))
        parts = {part: file for entry in entries for part, file in _parts(entry).items()}
        return {os.path.join(name, part): file for part, file in parts.items()}
    folder = os.path.dirname(path)
    if not exists(f"{path}.index"):
        is_pattern = "?" in name
        return {_name(file): file for file in (matching(folder, name) if is_pattern else [path])}
    if path.startswith(remote.WEB):  # They have no lists of files.
        shards = [f"{path}.data-00000-of-00001"]
    else:
        shards = matching(folder, f"{glob.escape(name)}.data-*")
    return {_name(file): file for file in (f"{path}.index", *shards)}


def _name(path: str) -> str:
    """Returns the last part of a remote path, without the query of a web address."""
    return os.path.basename(
        (path.partition("?")[0] if path.startswith(remote.WEB) else path).rstrip("/")
    )
