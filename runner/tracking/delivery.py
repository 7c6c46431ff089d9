"""Delivers what a run recorded to its stores: `python -m runner.sync RUN_DIR`."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from filelock import Timeout

from runner.errors import AwaitedRunError, Problem, RunDirectoryError, RunnerError, TrackingError
from runner.system.imports import without_collections, without_import_notes
from runner.tracking.follower import Destination, Follower
from runner.tracking.follower_process import ANSWER
from runner.tracking.journal_tracker import TENSORBOARD
from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory

logger = logging.getLogger(__name__)

# How long, besides the life of the run, to wait for another process that delivers.
_LOCK_SECONDS = 60.0
_NICENESS = 5

# Whose log a thread writes to: several runs are delivered at once.
_thread = threading.local()
_writing = threading.Lock()


def sync(
    directory: TrackingDirectory, uri: str | None = None, wakes: list[threading.Event] | None = None
) -> bool:
    """Delivers what a run recorded, to the end of the run; whether nothing is left.

    Args:
      directory: where it recorded.
      uri: an MLflow tracking URI in place of the one it was recorded with.
      wakes: takes one event for each store, which tells that the run has something to say.

    Raises:
      RunDirectoryError: nothing was recorded there.
      TrackingError: the URI cannot be used.
    """
    opening = directory.opening()
    if opening is None:
        raise RunDirectoryError(
            Problem(
                f"{directory.run_directory} holds nothing to deliver",
                "it has no tracking/opening.json: it is no run's directory, or was not tracked",
                "name the directory of one run, such as runs/NAME/001",
            )
        )
    if uri is not None:
        opening = replace(opening, stores=_moved(opening.stores, uri))
        directory.write_opening(opening)
    events = {store: threading.Event() for store in opening.stores}
    if wakes is not None:
        wakes += events.values()
    results: dict[str, bool] = {}

    def follow(store: str) -> None:
        _thread.lines = lines
        results[store] = _follow(directory, store, lambda seconds: _wait(events[store], seconds))

    threads = [threading.Thread(target=follow, args=(store,)) for store in opening.stores]
    with _logged_to(directory.log) as lines:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if wakes is not None:
        for event in events.values():
            wakes.remove(event)
    return all(results.get(store, False) for store in opening.stores)


def _follow(directory: TrackingDirectory, uri: str, wait: Callable[[float], object]) -> bool:
    lock = directory.delivery_lock(uri)
    waited = 0.0
    while waited < _LOCK_SECONDS:
        try:
            with lock.acquire(timeout=0):
                done = Follower(directory, uri, _connector(directory, uri), wait=wait).run()
        except Timeout:
            # The process of the run's former life may still be at work, and may end any moment.
            wait(1.0)
            waited = 0.0 if directory.is_written() else waited + 1.0
            continue
        if not done:
            logger.warning(
                "Not all is delivered; the rest is kept in %s. When the store is back:"
                " python -m runner.sync %s",
                directory.journal,
                directory.run_directory,
            )
        return done
    logger.warning("Another process delivers what is in %s.", directory.journal)
    return False


def _connector(
    directory: TrackingDirectory, uri: str
) -> Callable[[Opening, Position], Destination]:
    def connect(opening: Opening, position: Position) -> Destination:
        if uri == TENSORBOARD:
            with without_import_notes():
                from runner.tracking.tensorboard_run import TensorBoardRun

            return TensorBoardRun(directory.tensorboard)
        from runner.tracking.mlflow_tracker import MlflowStore

        store = MlflowStore(uri)
        parent = _parent(opening, uri, store.id_of)
        run = store.open_run(opening, position.run_id, parent)
        if opening.system_metrics and directory.is_written():
            run.monitor()
        return run

    return connect


def _parent(opening: Opening, uri: str, id_of: Callable[[Opening], str | None]) -> str | None:
    """Returns the store's name of the run that this one is a part of.

    Args:
      opening: what this one is.
      uri: the store's.
      id_of: asks the store, which may have been moved or copied with the folders.
    """
    if opening.parent is None:
        return None
    parent = TrackingDirectory(Path(opening.parent))
    # Asked before the position: whoever opens it there meanwhile has then said so.
    opened = parent.opening()
    expected = opened is not None and (parent.is_written() or parent.is_delivered(uri))
    found = parent.position(uri).run_id
    if found is None and expected:
        raise AwaitedRunError(
            Problem(
                f"run {opening.run_name!r} cannot be opened yet",
                f"it is a part of the one in {opening.parent}, whose delivery has not begun",
                f"see what hinders that: {parent.log}",
            )
        )
    if found is None and opened is not None:
        found = id_of(opened)
    if found is None:
        raise TrackingError(
            Problem(
                f"run {opening.run_name!r} cannot be opened yet",
                f"it is a part of the one in {opening.parent}, which the store does not have yet",
                f"deliver that first: python -m runner.sync {opening.parent}",
            )
        )
    return found


def _moved(stores: tuple[str, ...], uri: str) -> tuple[str, ...]:
    from runner.tracking.address import resolve

    kept = tuple(store for store in stores if store == TENSORBOARD)
    return (resolve(uri, Path.cwd()).uri, *kept)


def serve() -> bool:
    """Delivers for the process at the other end of standard input; whether nothing is left.

    It names run directories, one after the other, and by an empty line or by its end says that one
    of them has something to say. Each is answered on standard output when its run has ended.
    """
    os.nice(_NICENESS)  # Training comes first.
    _open_early(sys.stdin.readline().rstrip("\n"))
    wakes: list[threading.Event] = []
    results: dict[str, bool] = {}

    def deliver(name: str) -> None:
        results[name] = False
        try:
            results[name] = sync(TrackingDirectory(Path(name)), wakes=wakes)
        except RunnerError as error:
            _write_line(sys.stderr, f"runner.sync: {error}")
        finally:
            _answer(name, results[name])

    threads = []
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name:
            threads.append(threading.Thread(target=deliver, args=(name,)))
            threads[-1].start()
        else:
            _ring(wakes)
    while any(thread.is_alive() for thread in threads):
        # Nobody tells any more when a run has something to say.
        _ring(wakes)
        for thread in threads:
            thread.join(1.0)
    return all(results.values())


def _open_early(uri: str) -> None:
    """Opens MLflow while a run gets ready."""
    if not uri:
        return
    with without_collections():
        from runner.tracking.mlflow_tracker import MlflowStore

    try:
        store = MlflowStore(uri)
        # A run that is refused for a mistake leaves no database behind.
        if store.address.database is None or store.address.database.exists():
            store.connect()
    except TrackingError as error:
        # The run's log does not exist yet; delivering tries again and tells.
        logger.info("%s", error)


def _ring(wakes: list[threading.Event]) -> None:
    for each in list(wakes):
        each.set()


def _answer(name: str, delivered: bool) -> None:
    try:
        _write_line(sys.stdout, f"{ANSWER}{int(delivered)}{name}")
    except OSError:
        logger.info("The process that asked has ended.")


def _write_line(stream: TextIO, line: str) -> None:
    """Writes a line that no other thread's runs into, as `print` with its two writes would."""
    with _writing:
        stream.write(f"{line}\n")
        stream.flush()


def _wait(wake: threading.Event, seconds: float) -> None:
    wake.wait(seconds)
    wake.clear()


@contextmanager
def _logged_to(path: Path) -> Iterator[logging.Handler]:
    """Keeps what the threads log that name the handler theirs, and what is nobody's."""
    lines = logging.FileHandler(path)
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    lines.addFilter(lambda record: getattr(_thread, "lines", lines) is lines)
    root = logging.getLogger()
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        lines.close()
