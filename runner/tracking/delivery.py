"""Delivers the journal of a run to all of its stores, for `runner sync` and beside a run."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import Timeout

from runner.errors import RunDirectoryError
from runner.tracking.address import address_of
from runner.tracking.follower import Follower
from runner.tracking.store_kinds import MLFLOW, kind_of_store
from runner.tracking.tracking_directory import TrackingDirectory

logger = logging.getLogger(__name__)

# How long, besides the life of the run, to wait for another process that delivers.
_LOCK_SECONDS = 60.0

# How often to check whether a run has ended.
_POLL_SECONDS = 0.05

# The log handler of the run that a thread delivers: several runs are delivered at once.
_thread = threading.local()


def sync(
    directory: TrackingDirectory,
    uri: str | None = None,
    say: Callable[[str], object] = logger.info,
) -> bool:
    """Delivers what a run recorded, to the end of the run; returns whether all is delivered.

    Args:
      directory: where the run recorded.
      uri: an MLflow tracking URI in place of the one it was recorded with.
      say: takes a line about what is delivered, and how long a store is waited for.

    Raises:
      RunDirectoryError: nothing was recorded there.
      TrackingError: the URI cannot be used.
    """
    identity = directory.identity()
    if identity is None:
        raise RunDirectoryError.of(
            f"{directory.run_directory} holds nothing to deliver",
            "it has no tracking/identity.json: it is not a run directory, or was not tracked",
            "name the directory of one run, such as runs/NAME/001",
        )
    if uri is not None:
        others = (store for store in identity.stores if kind_of_store(store) is not MLFLOW)
        identity = replace(identity, stores=(address_of(uri, Path.cwd()).uri, *others))
        directory.write_identity(identity)

    say(
        f"delivering what {directory.run_directory} recorded to {', '.join(identity.stores)}; "
        f"a store that cannot be reached is tried for {identity.patience_seconds:g} s"
    )

    def follow(store: str) -> bool:
        _thread.log = log
        return _follow(directory, store)

    with _logged_to(directory.log) as log, ThreadPoolExecutor() as pool:
        return all(list(pool.map(follow, identity.stores)))


def _follow(directory: TrackingDirectory, uri: str) -> bool:
    wait = partial(_wait, directory)
    lock = directory.delivery_lock(uri)
    connect = partial(kind_of_store(uri).connect, directory, uri)
    waited = 0.0
    while waited < _LOCK_SECONDS:
        try:
            with lock.acquire(timeout=0):
                done = Follower(directory, uri, connect, wait=wait).run()
        except Timeout:
            # The follower of the interrupted run may still be at work, and may end any moment.
            wait(1.0)
            waited = 0.0 if directory.is_written() else waited + 1.0
            continue
        if not done:
            logger.warning(
                "Not all is delivered; the rest is kept in %s. When the store is back:"
                " runner sync %s",
                directory.journal,
                directory.run_directory,
            )
        return done
    logger.warning("Another process delivers the records in %s.", directory.journal)
    return False


def _wait(directory: TrackingDirectory, seconds: float) -> None:
    """Waits so many seconds, or until the run has ended, if it has not ended yet."""
    deadline = time.monotonic() + seconds
    written = directory.is_written()
    while time.monotonic() < deadline and directory.is_written() == written:
        time.sleep(min(_POLL_SECONDS, seconds))


@contextmanager
def _logged_to(path: Path) -> Iterator[logging.Handler]:
    """Writes the messages of one run's threads, and of threads that belong to no run, to a file."""
    log = logging.FileHandler(path)
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addFilter(lambda record: getattr(_thread, "log", log) is log)
    root = logging.getLogger()
    root.addHandler(log)
    try:
        yield log
    finally:
        root.removeHandler(log)
        log.close()


class _Warnings(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes warnings to standard output while that has a reader."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Stops writing, because the run that read the warnings has ended."""
        logging.getLogger().removeHandler(self)


def print_warnings() -> None:
    """Prints the warnings of this process to standard output from now on."""
    warnings = _Warnings(sys.stdout)
    warnings.setLevel(logging.WARNING)
    warnings.setFormatter(logging.Formatter("%(message)s"))
    logging.raiseExceptions = False  # No tracebacks about a log on a full disk.
    logging.basicConfig(level=logging.INFO, handlers=[warnings], force=True)
