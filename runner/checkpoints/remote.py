"""Remote files, as fsspec opens them: `gs://`, `s3://`, `az://`, `https://`.

They are listed and copied here, and read from the copy on this machine: a web server may serve a
file only from its beginning, and every part of a checkpoint is a request.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from runner.errors import CheckpointError

WEB = ("http://", "https://")
# What stores say about a file that changes when it is replaced.
_VERSION = ("etag", "md5", "digest", "checksum", "generation", "modified", "mtime", "created")
_TIMEOUT_SECONDS = 60


def exists(path: str) -> bool:
    """Returns whether there is a file or directory; a web server may deny what is missing.

    Raises:
      CheckpointError: when fsspec, or the library for the scheme of `path`, is not installed.
      OSError: when the server does not answer.
    """
    if path.startswith(WEB) and ("#" in path or ("?" in path and path.endswith(".index"))):
        return False  # A server does not see a fragment, and may ignore a query.
    try:
        stamp(path)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def is_directory(path: str) -> bool:
    """Returns whether `path` is a directory; web servers have none. Raises as `exists`."""
    with _opened(path) as system:
        return not path.startswith(WEB) and bool(system.isdir(path))


def names_in(directory: str) -> list[str]:
    """Returns the names in a directory. Raises as `exists`."""
    with _opened(directory) as system:
        entries = system.ls(directory, detail=False)
        return [os.path.basename(entry.rstrip("/")) for entry in entries]


def stamp(path: str) -> str:
    """Returns a file's size and version. Raises as `exists`."""
    with _opened(path) as system:
        info = system.info(path)
    parts = (f"{key}={info[key]}" for key in sorted(info) if _is_version(key))
    return f"{info.get('size')}:{' '.join(parts)}"


def copy(path: str, target: str) -> None:
    """Copies a file to this machine. Raises as `exists`."""
    with _opened(path) as system:
        system.get_file(path, target)
        expected, copied = system.info(path).get("size"), os.path.getsize(target)
    if expected not in (None, copied):  # A web server may not say it.
        raise OSError(f"{copied:,} of {expected:,} bytes arrived")


def _is_version(key: str) -> bool:
    name = key.lower().replace("-", "").replace("_", "")
    return any(part in name for part in _VERSION)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Yields the file system of a path; exceptions of its library become OSErrors."""
    system = _file_system(path)
    try:
        yield system
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


def _file_system(path: str) -> Any:
    options: dict[str, Any] = {"use_listings_cache": False}
    try:
        fsspec = importlib.import_module("fsspec")
        if path.startswith(WEB):  # By default a whole download may take no more than five minutes.
            aiohttp = importlib.import_module("aiohttp")
            limits = {"sock_connect": _TIMEOUT_SECONDS, "sock_read": _TIMEOUT_SECONDS}
            timeout = aiohttp.ClientTimeout(**limits)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        return fsspec.url_to_fs(path, **options)[0]
    except (ImportError, ValueError) as error:
        if isinstance(error, ImportError):
            is_extra = path.startswith(WEB) or error.name == "fsspec"
            library = "pip install 'runner[remote]'" if is_extra else "install the library it names"
            remedy = f"{library}, or copy the checkpoint to this machine"
        else:
            remedy = "correct the path, e.g. gs://..., s3://..., az://... or https://..."
        state = f"{path.removesuffix('.index')} cannot be opened"
        raise CheckpointError.of(state, str(error), remedy) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
