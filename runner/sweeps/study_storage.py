"""Where a study of Optuna's is kept, as every process that works at it opens it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages import InMemoryStorage, RDBStorage

from runner.config.instantiation import build_target
from runner.errors import ConfigError, Problem

logger = logging.getLogger(__name__)

DATABASE = "study.db"


def open_storage(directory: Path, storage: Any) -> Any:
    """Returns the storage that `hydra.sweeper.storage` names.

    Args:
      directory: the sweep's.
      storage: a database's URL, a node with a `_target_`, or None for SQLite in the directory.

    Raises:
      ConfigError: it cannot be opened, or not by another process.
    """
    opened = _opened(directory, storage)
    if _is_private(opened):
        named = storage["_target_"] if isinstance(storage, Mapping) else storage
        raise ConfigError(
            Problem(
                f"hydra.sweeper.storage is {named}, which is in the memory of one process",
                "each trial opens the storage for itself, and so does the same command again",
                "leave it out, for SQLite in the sweep's folder, or give a database's URL such as"
                " sqlite:///study.db",
            )
        )
    return opened


def _opened(directory: Path, storage: Any) -> Any:
    if isinstance(storage, Mapping):
        return build_target("hydra.sweeper.storage", storage)
    if storage is None:
        # Two processes that make the tables at once disturb each other.
        with FileLock(directory / "study.lock"):
            # It holds what is drawn as it is, secrets included.
            (directory / DATABASE).touch(mode=0o600)
            return _database(f"sqlite:///{directory / DATABASE}")
    try:
        return _database(storage)
    except Exception as first:  # noqa: BLE001 - the second attempt tells
        logger.info("opening the study's database again: %s", first)
    try:
        return _database(storage)  # By now, another process may have made the tables.
    except Exception as error:
        raise ConfigError(
            Problem(
                "hydra.sweeper.storage cannot be opened",
                str(error).splitlines()[0],
                "a URL such as sqlite:///study.db or postgresql://host/database, whose driver is"
                " installed",
            )
        ) from error


def _is_private(storage: Any) -> bool:
    """Whether another process that opens the same storage finds an empty one."""
    if isinstance(storage, RDBStorage):
        url = storage.engine.url
        return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
    return isinstance(storage, InMemoryStorage)


def _database(url: str) -> RDBStorage:
    # Several processes write to the file, each for a moment.
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    return RDBStorage(url, engine_kwargs=arguments)
