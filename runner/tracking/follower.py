"""Follows the journal of a run and delivers each of its records to one store, once."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from runner.errors import RunnerError
from runner.system.atomic_files import sync_to_disk
from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.encoding import Delivery, description
from runner.tracking.journal import (
    Artifact,
    End,
    Line,
    Metrics,
    Record,
    Repeated,
    read_lines,
    segments,
)
from runner.tracking.store_kinds import ParentMissingError
from runner.tracking.tracking_directory import Position, RunIdentity, TrackingDirectory, now

logger = logging.getLogger(__name__)

# Lines that are delivered, and acknowledged, together.
_CHUNK = 1000
# Seconds for which records gather before they are delivered together.
_INTERVAL = 1.0
_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

Connect = Callable[[RunIdentity], Destination]


class Follower:
    """Delivers a journal to one store, starting after the part that the store has acknowledged.

    The position notes a chunk once the store has acknowledged it. A chunk that may have been sent
    before is sent again unchanged, and the store, whose key of a metric's value is name, step, time
    and value, holds it once. What a run that goes back records again is not sent: the journal says
    so.

    A run whose process died without recording its end is KILLED, because it may never be resumed.
    When it is resumed, it is RUNNING again.

    Args:
      directory: holds the journal and the position.
      uri: the store, as the identity of the run names it.
      connect: opens the run in the store, creating it if necessary; may raise.
      wait: waits so many seconds, or less.
      now: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        directory: TrackingDirectory,
        uri: str,
        connect: Connect,
        *,
        wait: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._uri = uri
        self._connect = connect
        self._wait = wait
        self._now = now
        self._destination: Destination | None = None
        self._position = Position()
        self._saved = Position()
        self._pending: deque[Delivery] = deque()
        self._failures, self._warned = 0, False
        # The final status of a run that is only added to.
        self._ended_before: str | None = None

    def run(self) -> bool:
        """Delivers until the run has ended and the store has all; returns False on giving up.

        It gives up when the run has ended and nothing could be delivered for
        `RunIdentity.patience_seconds`, and at once when the run is no longer to go to this store.
        """
        self._position = self._directory.position(self._uri)
        self._saved = replace(self._position)
        give_up_at: float | None = None
        while True:
            # Before the journal is read: all records of an ended run are then in the journal.
            written = self._directory.is_written()
            identity = self._directory.identity()
            if identity is None or self._uri not in identity.stores:
                return False
            self._ended_before = identity.ended
            before = (self._position.segment, self._position.offset)
            try:
                self._deliver_all(identity, written)
                self._report_status(written)
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._failed(error, None if written else identity.patience_seconds)
                progress = before != (self._position.segment, self._position.offset)
                if written or progress or give_up_at is None:
                    give_up_at = self._now() + identity.patience_seconds
                elif self._now() >= give_up_at:
                    self._saved.given_up = now()  # Not what is pending: it is not delivered.
                    self._directory.write_position(self._uri, self._saved)
                    return False
                self._wait(_RETRY_DELAYS[min(self._failures, len(_RETRY_DELAYS)) - 1])
            else:
                if not written:
                    return True
                self._wait(_INTERVAL)

    def _deliver_all(self, identity: RunIdentity, written: bool) -> None:
        if self._destination is None:
            self._destination = self._open(identity)
        while self._pending or self._read_chunk(self._destination, written):
            while self._pending:
                self._destination.deliver(self._pending[0], self._failures)
                self._pending.popleft()
                self._succeeded()
            self._save()

    def _open(self, identity: RunIdentity) -> Destination:
        destination = self._connect(identity)
        if self._position.run_id not in (None, destination.run_id):
            logger.warning(
                "%s has no run %s any more: all that was recorded is delivered to run %s.",
                destination.name,
                self._position.run_id,
                destination.run_id,
            )
            self._position = Position()
        self._position.run_id = destination.run_id
        self._position.experiment_id = destination.experiment_id
        self._save()
        logger.info("%s is open as run %s.", destination.name, destination.run_id or "here")
        return destination

    def _read_chunk(self, destination: Destination, written: bool) -> bool:
        """Reads the next lines and makes their deliveries pending; returns False at the end."""
        position = self._position
        while True:
            # Listed first: a segment that has a later one is complete.
            listed = segments(self._directory.journal)
            current = next((item for item in listed if item.number == position.segment), None)
            if current is not None:
                lines = list(islice(read_lines(current.path, position.offset), _CHUNK))
                if lines:
                    break
            later = [segment for segment in listed if segment.number > position.segment]
            if not later:
                self._save()
                return False
            position.segment, position.offset, position.ended = later[0].number, 0, None
            if written:  # A resumed run is RUNNING at once, however much is to be delivered.
                self._report_status(written)
        # What is delivered outlives a crash of the machine, as the run must not record it again.
        sync_to_disk(current.path)
        self._pending.extend(destination.deliveries(list(self._wanted(lines))))
        position.offset = lines[-1].end
        return True

    def _wanted(self, lines: list[Line]) -> Iterator[Record]:
        """Yields the records that go to the store, and notes the others in the position."""
        for line in lines:
            record = line.record
            if record is None:
                self._position.lost += 1
                logger.warning("A record before byte %d of the journal is damaged.", line.end)
            elif isinstance(record, Metrics):
                self._position.last_time = record.time
                if not isinstance(record, Repeated):
                    yield record
            elif isinstance(record, End):
                self._position.ended = record.status.value
                if record.time is not None:
                    self._position.end_time = record.time
                self._position.lost += record.lost
            elif isinstance(record, Artifact):
                yield replace(record, path=self._directory.run_directory / record.path)
            else:
                yield record

    def _report_status(self, written: bool) -> None:
        status, end_time = self._position.ended or self._ended_before, self._position.end_time
        if status is None:
            status = (Status.RUNNING if written else Status.KILLED).value
            # A killed process did not record the time of its end.
            end_time = None if written else self._position.last_time
        if self._destination is None or status == self._position.status:
            return
        missing = [description(tuple(self._destination.refused))]
        if self._position.lost:
            missing.append(f"{self._position.lost:,} records that did not reach the journal")
        self._destination.finish(Status(status), ", ".join(filter(None, missing)), end_time)
        self._position.status = status
        self._save()
        logger.info("%s: the run is %s.", self._destination.name, status)

    def _save(self) -> None:
        if self._position != self._saved:
            self._directory.write_position(self._uri, self._position)
            self._saved = replace(self._position)

    def _failed(self, error: Exception, patience: float | None) -> None:
        """Logs a failure; `patience` is how long it is tried again, None while the run lasts."""
        self._failures += 1
        if self._destination is not None:
            message = self._destination.describe(error)
        else:
            message = str(error) if isinstance(error, RunnerError) else repr(error)
        # Creating a database takes seconds, during which a missing parent run is no outage.
        pending = isinstance(error, ParentMissingError) and self._failures < len(_RETRY_DELAYS)
        # Once for an outage on the terminal, at every attempt in the log.
        level = logging.INFO if pending or self._warned else logging.WARNING
        self._warned = self._warned or not pending
        if patience is None:
            state = (
                "Tracking is interrupted; the run continues, and what it records is kept on disk"
            )
            state += " and delivered when the store is back"
        else:
            state = f"Nothing can be delivered now; it is tried again for {patience:g} s"
        logger.log(level, "%s: %s", state, message)

    def _succeeded(self) -> None:
        if self._failures:
            logger.info("Tracking has resumed.")
        self._failures, self._warned = 0, False
