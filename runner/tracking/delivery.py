"""Delivers the journal of a run to all of its stores, for `runner.sync` and beside a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from runner.errors import Problem, RunDirectoryError, TrackingError
from runner.system.imports import without_import_notes
from runner.system.status import Status
from runner.tracking.address import resolve
from runner.tracking.encoding import Delivery, MetricPoint
from runner.tracking.follower import Destination, Follower
from runner.tracking.journal import Metrics, Record
from runner.tracking.tracking_directory import TENSORBOARD, Opening, Position, TrackingDirectory

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore

logger = logging.getLogger(__name__)

# How long, besides the life of the run, to wait for another process that delivers.
_LOCK_SECONDS = 60.0

# A parent run whose delivery has not begun is reported missing after so long: creating a database
# takes seconds on a busy machine.
_PARENT_SECONDS = 30.0
_PARENT_DELAY = 0.5

# Whose log a thread writes to: several runs are delivered at once.
_thread = threading.local()


def sync(
    directory: TrackingDirectory, uri: str | None = None, wakes: list[threading.Event] | None = None
) -> bool:
    """Delivers what a run recorded, to the end of the run; whether nothing is left.

    Args:
      directory: where it recorded.
      uri: an MLflow tracking URI in place of the one it was recorded with.
      wakes: takes one event for each store; setting it cuts the wait for new records short.

    Raises:
      RunDirectoryError: nothing was recorded there.
      TrackingError: the URI cannot be used.
    """
    opening = directory.opening()
    if opening is None:
        raise RunDirectoryError(
            Problem(
                f"{directory.run_directory} holds nothing to deliver",
                "it has no tracking/opening.json: it is not a run directory, or was not tracked",
                "name the directory of one run, such as runs/NAME/001",
            )
        )
    if uri is not None:
        kept = tuple(store for store in opening.stores if store == TENSORBOARD)
        opening = replace(opening, stores=(resolve(uri, Path.cwd()).uri, *kept))
        directory.write_opening(opening)
    events = {store: threading.Event() for store in opening.stores}
    wakes = [] if wakes is None else wakes
    wakes += events.values()

    def follow(store: str) -> bool:
        _thread.log = log
        return _follow(directory, store, partial(_wait, events[store]))

    with _logged_to(directory.log) as log, ThreadPoolExecutor() as pool:
        delivered = list(pool.map(follow, opening.stores))
    for event in events.values():
        wakes.remove(event)
    return all(delivered)


def _follow(directory: TrackingDirectory, uri: str, wait: Callable[[float], object]) -> bool:
    lock = directory.delivery_lock(uri)
    waited = 0.0
    while waited < _LOCK_SECONDS:
        try:
            with lock.acquire(timeout=0):
                connect = partial(_connect, directory, uri, wait)
                done = Follower(directory, uri, connect, wait=wait).run()
        except Timeout:
            # The follower of the interrupted run may still be at work, and may end any moment.
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


def _connect(
    directory: TrackingDirectory,
    uri: str,
    wait: Callable[[float], object],
    opening: Opening,
    position: Position,
) -> Destination:
    if uri == TENSORBOARD:
        return TensorBoardRun(directory.tensorboard)
    # Importing MLflow takes seconds.
    from runner.tracking.mlflow_store import MlflowStore

    store = MlflowStore(uri)
    parent = None
    if opening.parent is not None:
        parent = _parent_id(TrackingDirectory(Path(opening.parent)), opening, store, wait)
    run = store.open_run(opening, position.run_id, parent)
    if opening.system_metrics and directory.is_written():
        run.monitor()
    return run


def _parent_id(
    parent: TrackingDirectory, opening: Opening, store: MlflowStore, wait: Callable[[float], object]
) -> str:
    """Returns the store's id of the parent run, waiting for a time if it is about to be delivered.

    Args:
      parent: the parent's directory.
      opening: of the child.
      store: it may have been moved or copied with the run directories, and knows the run then.
      wait: waits so many seconds, or less.
    """
    uri = store.address.uri
    give_up = time.monotonic() + _PARENT_SECONDS
    while True:
        # Before the position: a process that delivers in between has written the position by then.
        opened = parent.opening()
        expected = opened is not None and (parent.is_written() or parent.is_delivered(uri))
        found = parent.position(uri).run_id
        if found is None and opened is not None and not expected:
            found = store.id_of(opened)
        if found is not None:
            return found
        if not expected or time.monotonic() >= give_up:
            break
        wait(_PARENT_DELAY)
    raise TrackingError(
        Problem(
            f"run {opening.run_name!r} cannot be opened yet",
            f"it is a part of the one in {opening.parent}, which the store does not have yet",
            f"see what hinders its delivery: {parent.log}"
            if expected
            else f"deliver that first: python -m runner.sync {opening.parent}",
        )
    )


class TensorBoardRun(Destination):
    """The metrics of one run as event files; TensorBoard has no place for anything else.

    A point that is delivered twice stands in the file twice, with the same step and time, where
    TensorBoard draws it once.
    """

    def __init__(self, directory: Path) -> None:
        with without_import_notes():
            import tensorflow as tf
        self.name = str(directory)
        self._v1 = tf.compat.v1
        with tf.Graph().as_default():  # Its writer refuses to work eagerly.
            self._writer = self._v1.summary.FileWriter(str(directory))

    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields all metrics at once."""
        points = tuple(
            MetricPoint(name, value, record.time, record.step)
            for record in records
            if isinstance(record, Metrics)
            for name, value in record.values.items()
        )
        if points:
            yield points

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Writes metrics to the file."""
        for point in delivery:
            if isinstance(point, MetricPoint):
                value = self._v1.Summary.Value(tag=point.key, simple_value=point.value)
                summary, time = self._v1.Summary(value=[value]), point.time / 1000
                event = self._v1.Event(wall_time=time, step=point.step, summary=summary)
                self._writer.add_event(event)
        self._writer.flush()

    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        """Does nothing: TensorBoard knows no status and no end."""


def _wait(wake: threading.Event, seconds: float) -> None:
    wake.wait(seconds)
    wake.clear()


@contextmanager
def _logged_to(path: Path) -> Iterator[logging.Handler]:
    """Keeps what the threads of one run log, and threads that belong to no run."""
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
