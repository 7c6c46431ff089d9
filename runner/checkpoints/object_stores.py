"""Files in object stores and on web servers, as fsspec opens them: `s3://`, `az://`, `https://`.

They are listed and copied here, and read from the copy on this machine: a web server may serve a
file only from its beginning, and every part of a checkpoint is a request.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runner.errors import CheckpointError

WEB = ("http", "https")
# What stores say about a file that changes when it is replaced.
_VERSION = ("etag", "md5", "digest", "checksum", "generation", "modified", "mtime", "created")
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class FileStatus:
    """A file's metadata.

    Attributes:
      length: its size in bytes; None if a web server does not say.
      mtime_nsec: a string that changes when the file is replaced; not every store has a time.
    """

    length: int | None
    mtime_nsec: str


class ObjectStore:
    """The part of the interface of `tf.io.gfile` that finds and copies files.

    Raises:
      CheckpointError: when fsspec, or the library for this scheme, is not installed.
    """

    def __init__(self, path: str) -> None:
        self._scheme = path.partition("://")[0]
        self._files = _file_system(path, self._scheme)

    def exists(self, path: str) -> bool:
        """Returns whether there is a file or directory; a web server may deny what is missing."""
        if self._scheme in WEB and ("#" in path or ("?" in path and path.endswith(".index"))):
            return False  # A server does not see a fragment, and may ignore a query.
        try:
            self.stat(path)
        except (FileNotFoundError, PermissionError):
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Returns whether `path` is a directory; web servers have none."""
        with _errors(path):
            return self._scheme not in WEB and bool(self._files.isdir(path))

    def listdir(self, path: str) -> list[str]:
        """Returns the names in a directory."""
        with _errors(path):
            entries = self._files.ls(path, detail=False)
            return [os.path.basename(entry.rstrip("/")) for entry in entries]

    def stat(self, path: str) -> FileStatus:
        """Returns a file's size and version."""
        with _errors(path):
            info = self._files.info(path)
        parts = (f"{key}={info[key]}" for key in sorted(info) if _is_version(key))
        return FileStatus(info.get("size"), " ".join(parts))

    def copy(self, path: str, target: str) -> None:
        """Copies a file to this machine."""
        with _errors(path):
            self._files.get_file(path, target)
        expected, copied = self.stat(path).length, os.path.getsize(target)
        if expected not in (None, copied):
            raise OSError(f"{copied:,} of {expected:,} bytes arrived")


def _is_version(key: str) -> bool:
    name = key.lower().replace("-", "").replace("_", "")
    return any(part in name for part in _VERSION)


def _file_system(path: str, scheme: str) -> Any:
    options: dict[str, Any] = {"use_listings_cache": False}
    try:
        fsspec = importlib.import_module("fsspec")
        if scheme in WEB:  # By default a whole download may take no more than five minutes.
            aiohttp = importlib.import_module("aiohttp")
            limits = {"sock_connect": _TIMEOUT_SECONDS, "sock_read": _TIMEOUT_SECONDS}
            timeout = aiohttp.ClientTimeout(**limits)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        return fsspec.url_to_fs(path, **options)[0]
    except ImportError as error:
        is_extra = scheme in WEB or error.name == "fsspec"
        remedy = "pip install 'runner[remote]'" if is_extra else "install the library it names"
        raise CheckpointError.of(
            f"{path.removesuffix('.index')} cannot be opened",
            f"a library for {scheme}:// is not installed: {error}",
            f"{remedy}, or copy the checkpoint to this machine",
        ) from error
    except ValueError as error:
        raise CheckpointError.of(
            f"{path.removesuffix('.index')} cannot be opened",
            f"neither TensorFlow nor fsspec opens {scheme}://: {error}",
            "correct the path, e.g. gs://..., s3://..., az://... or https://...",
        ) from error


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turns the exceptions of a store's library into OSErrors."""
    try:
        yield
    except FileNotFoundError as error:
        reason = error.__cause__  # fsspec reports every failure of a web server in this way.
        if reason is None:
            raise
        if getattr(reason, "status", 0) in (404, 410):
            raise FileNotFoundError(f"{path}: {reason}") from error
        if 400 <= getattr(reason, "status", 0) < 500:
            raise PermissionError(f"{path}: {_first_line(reason)}") from error
        raise OSError(f"{path}: {_first_line(reason)}") from error
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
