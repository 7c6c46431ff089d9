"""Follows the journal of a run and delivers each of its records to one store, once."""

from __future__ import annotations

import abc
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import islice

from runner.errors import RunnerError
from runner.system.atomic_files import sync_to_disk
from runner.system.status import Status
from runner.tracking.encoding import Delivery, summary
from runner.tracking.journal import (
    Artifact,
    End,
    Line,
    Metrics,
    Record,
    Segment,
    Tags,
    read_lines,
    segments,
)
from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory

logger = logging.getLogger(__name__)

RECORDED_AGAIN_TAG = "runner.metrics_recorded_differently"

# Lines that are delivered, and acknowledged, together.
_CHUNK = 1000
# Seconds for which records gather before they are delivered together.
_INTERVAL = 1.0
_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Destination(abc.ABC):
    """One run in a store."""

    run_id: str | None = None
    """The store's id of the run; None for a store without ids."""
    experiment_id: str | None = None
    """The store's id of the experiment, likewise."""
    name: str
    """The store, for display."""
    refused: Sequence[Delivery] = ()
    """Deliveries that were left out because the store would never take them."""

    @abc.abstractmethod
    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields `records`, in their order, gathered into deliveries."""

    @abc.abstractmethod
    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Delivers, idempotently; it has failed `failures` times before.

        What the store refuses for good is logged and left out, so that it does not hold back
        the rest.

        Raises:
          Exception: of any kind; the store cannot take it now, so it should be tried again.
        """

    @abc.abstractmethod
    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        """Records the status of the run, and what is missing, if anything is.

        Args:
          status: the status; `Status.RUNNING` for a run that has not ended.
          missing: what is missing, for display; empty for nothing.
          end_time: when it ended, in milliseconds since the epoch; None is now.

        Raises:
          Exception: of any kind; it should be tried again.
        """

    def describe(self, error: Exception) -> str:
        """Returns one line about an error that this destination raised; passwords masked."""
        return f"{type(error).__name__}: {error}"


Connect = Callable[[Opening, Position], Destination]


class Follower:
    """Delivers a journal to one store, from where the store has acknowledged it.

    Before a chunk is sent, the position notes that it may have been; afterwards, that it was. A
    chunk that may have been sent is sent again unchanged, and the store, whose key of a metric's
    value is name, step, time and value, holds it once.

    A run that resumes records the steps since its checkpoint again. What of them was not sent is
    left out; what was sent stays, and its second recording is left out where it is the same. A
    value that differs is sent too, and its metric named in `runner.metrics_recorded_differently`.

    A run whose process died without recording its end is KILLED, because it may never be resumed;
    if it is, it is RUNNING again.

    Args:
      directory: where the journal and the position are.
      uri: the store, as the run's opening names it.
      connect: opens the run in the store, creating it where the position has no id; may raise.
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
        # (metric, step) -> value, of what the store has of steps that the run records again.
        self._delivered: dict[tuple[str, float], float] = {}
        self._failures = 0
        # The final status of a run that is only added to.
        self._ended_before: str | None = None

    def run(self) -> bool:
        """Delivers until the run has ended and the store has all; False when it gave up.

        It gives up when the run has ended and nothing could be delivered for
        `Opening.patience_seconds`, and at once when the run is no longer to go to this store.
        """
        self._position = self._directory.position(self._uri)
        self._resume_segment()
        hopeful_until: float | None = None
        while True:
            # Looked at first: all that an ended run has recorded is then in the journal.
            written = self._directory.is_written()
            opening = self._directory.opening()
            if opening is None or self._uri not in opening.stores:
                return False
            self._ended_before = opening.ended
            before = (self._position.segment, self._position.offset)
            try:
                self._deliver_all(opening, written)
                self._report_status(written)
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._failed(error)
                progress = before != (self._position.segment, self._position.offset)
                if written or progress or hopeful_until is None:
                    hopeful_until = self._now() + opening.patience_seconds
                elif self._now() >= hopeful_until:
                    return False
                self._wait(_RETRY_DELAYS[min(self._failures, len(_RETRY_DELAYS)) - 1])
            else:
                if not written:
                    return True
                self._wait(_INTERVAL)

    def _deliver_all(self, opening: Opening, written: bool) -> None:
        if self._destination is None:
            destination = self._connect(opening, self._position)
            if self._position.run_id not in (None, destination.run_id):
                logger.warning(
                    "%s has no run %s any more: all that was recorded is delivered to run %s.",
                    destination.name,
                    self._position.run_id,
                    destination.run_id,
                )
                self._position = Position()
                self._resume_segment()
            self._position.run_id = destination.run_id
            self._position.experiment_id = destination.experiment_id
            self._save()
            logger.info("%s is open as run %s.", destination.name, destination.run_id or "here")
            self._destination = destination
        while self._pending or self._take(self._destination, written):
            while self._pending:
                self._destination.deliver(self._pending[0], self._failures)
                self._pending.popleft()
                self._succeeded()
            self._position.offset = self._position.sending

    def _take(self, destination: Destination, written: bool) -> bool:
        """Takes the next chunk; False when there is none."""
        position = self._position
        # Listed first: a segment that has a later one is complete.
        found = segments(self._directory.journal)
        current = next((each for each in found if each.number == position.segment), None)
        later = [each for each in found if each.number > position.segment]
        lines = list(islice(read_lines(current.path, position.offset), _CHUNK)) if current else []
        if current is None or not lines:
            if not later:
                self._save()
                return False
            position.segment, position.offset, position.sending = later[0].number, 0, 0
            position.ended = None
            self._resume_segment()
            if written:  # A resumed run is RUNNING at once, however much is to be delivered.
                self._report_status(written)
            return True
        sent = max(position.sending, position.offset)
        self._cut(sent, [segment.after for segment in later if segment.after is not None])
        sync_to_disk(current.path)
        records = list(self._wanted(position.segment, lines, sent))
        position.sending = lines[-1].end
        self._save()
        self._pending.extend(destination.deliveries(records))
        return True

    def _cut(self, sent: int, afters: list[int]) -> None:
        """Notes what is void of this segment: steps recorded again in a later one, not yet sent."""
        if afters and not any(
            number == self._position.segment and step <= min(afters)
            for number, _, step in self._position.cuts
        ):
            self._position.cuts.append([self._position.segment, sent, min(afters)])

    def _wanted(self, segment: int, lines: list[Line], sent: int) -> Iterator[Record]:
        for line in lines:
            record = line.record
            first_time = line.end > sent
            if record is None:
                self._position.lost += first_time
                logger.warning("A record before byte %d of the journal is damaged.", line.end)
            elif isinstance(record, Metrics):
                self._position.last_time = record.time
                if not self._is_cut(segment, line.end, record.step):
                    yield from self._new(record)
            elif isinstance(record, End):
                self._position.ended = record.status.value
                if record.time is not None:
                    self._position.end_time = record.time
                self._position.lost += record.lost * first_time
            elif isinstance(record, Artifact):
                yield Artifact(self._directory.run_directory / record.path, record.folder)
            else:
                yield record

    def _is_cut(self, segment: int, end: int, step: float) -> bool:
        return any(
            segment == number and end > offset and step > beyond
            for number, offset, beyond in self._position.cuts
        )

    def _new(self, record: Metrics) -> Iterator[Record]:
        """Yields what the store does not have of a record."""
        if not self._delivered:
            yield record
            return
        values = {}
        differing = set(self._position.differing)
        for name, value in record.values.items():
            known = self._delivered.get((name, record.step))
            if known is None or not _same(known, value):
                values[name] = value
                if known is not None:
                    differing.add(name)
        if values:
            yield record._replace(values=values)
        if len(differing) > len(self._position.differing):
            self._position.differing = sorted(differing)
            yield Tags({RECORDED_AGAIN_TAG: "\n".join(self._position.differing)})

    def _resume_segment(self) -> None:
        """Finds what the store has of the steps that the present segment records again."""
        self._delivered = {}
        found = segments(self._directory.journal)
        current = next((each for each in found if each.number == self._position.segment), None)
        if current is None or current.after is None:
            return
        for segment in found[: found.index(current)]:
            self._delivered.update(self._sent_beyond(segment, current.after))

    def _sent_beyond(
        self, segment: Segment, step: int
    ) -> Iterator[tuple[tuple[str, float], float]]:
        for record, end in read_lines(segment.path):
            # The step itself too: what was recorded of it after its checkpoint comes again.
            if not isinstance(record, Metrics) or record.step < step:
                continue
            if not self._is_cut(segment.number, end, record.step):
                for name, value in record.values.items():
                    yield (name, record.step), value

    def _report_status(self, written: bool) -> None:
        status, end_time = self._position.ended or self._ended_before, self._position.end_time
        if status is None:
            status = (Status.RUNNING if written else Status.KILLED).value
            # A killed process did not record the time of its end.
            end_time = None if written else self._position.last_time
        if self._destination is None or status == self._position.status:
            return
        missing = [summary(self._destination.refused)]
        if self._position.lost:
            missing.append(f"{self._position.lost:,} records that did not reach the journal")
        self._destination.finish(Status(status), ", ".join(filter(None, missing)), end_time)
        self._position.status = status
        self._save()
        logger.info("%s: the run is %s.", self._destination.name, status)

    def _save(self) -> None:
        if self._position != self._saved:
            self._directory.write_position(self._uri, self._position)
            self._saved = deepcopy(self._position)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._destination is not None:
            message = self._destination.describe(error)
        else:
            message = str(error) if isinstance(error, RunnerError) else repr(error)
        # Once for an outage on the terminal, at every attempt in the log.
        level = logging.WARNING if self._failures == 1 else logging.INFO
        logger.log(
            level,
            "Tracking is interrupted; the run continues, and what it records is kept on disk and"
            " delivered when the store is back: %s",
            message,
        )

    def _succeeded(self) -> None:
        if self._failures:
            logger.info("Tracking has resumed.")
        self._failures = 0


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)  # NaN is the same as NaN.
