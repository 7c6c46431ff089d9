"""A queue and the thread that empties it into a store that may be slow, failing or away."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT")
DeliveryT = TypeVar("DeliveryT")

# While closing, time is short: no wait between two attempts is longer than this.
_MAX_CLOSING_DELAY = 1.0
# Records prepared at a time, so that what is in preparation stays small beside the queue.
_CHUNK = 1000


@dataclass(frozen=True)
class Remainder(Generic[RecordT, DeliveryT]):
    """What a closed writer did not deliver.

    Attributes:
      records: accepted by `put`, not yet prepared.
      deliveries: prepared, not delivered; the first may still be under way.
      dropped: how many records `put` turned away, the queue being full or closed.
      error: why the last attempt failed; None when none did.
    """

    records: tuple[RecordT, ...]
    deliveries: tuple[DeliveryT, ...]
    dropped: int
    error: Exception | None

    def __bool__(self) -> bool:
        return bool(self.records or self.deliveries or self.dropped)


class BackgroundWriter(Generic[RecordT, DeliveryT]):
    """Prepares and delivers records in order, in a thread of its own.

    `put` appends to a queue and returns. The thread takes everything that has gathered,
    prepares it and delivers it piece by piece. A delivery that raises is tried again, without
    end, after a growing delay: what was recorded waits in memory until the store is back, or
    until `close` runs out of time. The first failure of a series is logged as a warning,
    unless `close` has been called: then the caller reports what is left.

    Args:
      prepare: turns records into deliveries; called in the thread.
      deliver: takes one delivery and the number of attempts that failed before; called in the
        thread; raises when the delivery should be tried again.
      name: what is written to, in words for the log.
      interval: seconds for which records gather before they are delivered together.
      retry_delays: seconds before the second attempt, the third, and so on; the last one stays.
      capacity: records that may wait; more are dropped, counted and reported.
      describe: puts an exception into words for the log.
    """

    def __init__(
        self,
        prepare: Callable[[Sequence[RecordT]], Iterable[DeliveryT]],
        deliver: Callable[[DeliveryT, int], None],
        *,
        name: str,
        interval: float = 1.0,
        retry_delays: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0),
        capacity: int = 200_000,
        describe: Callable[[Exception], str] = str,
    ) -> None:
        self._prepare = prepare
        self._deliver = deliver
        self._name = name
        self._interval = interval
        self._retry_delays = retry_delays
        self._capacity = capacity
        self._describe = describe
        # The queue needs no lock: append, popleft and len of a deque are atomic.
        self._records: deque[RecordT] = deque()
        self._deliveries: deque[DeliveryT] = deque()
        self._lock = threading.Lock()
        self._failures = 0
        self._dropped = 0
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        # A daemon: a store that hangs must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name=f"writer of {name}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, record: RecordT) -> None:
        """Queues a record; never waits and never raises."""
        if len(self._records) >= self._capacity or self._closing.is_set():
            if not self._dropped:
                reason = "closed" if self._closing.is_set() else f"{self._capacity:,} records wait"
                logger.warning("Tracking to %s drops records: %s.", self._name, reason)
            self._dropped += 1
            return
        self._records.append(record)

    def close(self, timeout: float) -> Remainder[RecordT, DeliveryT]:
        """Delivers what is queued, for at most `timeout` seconds, and returns what is left."""
        self._closing.set()
        self._thread.join(timeout)
        self._abandoned.set()
        with self._lock:
            return Remainder(
                tuple(self._records), tuple(self._deliveries), self._dropped, self._error
            )

    def _run(self) -> None:
        while not self._abandoned.is_set():
            # Read first: only then is everything that was put before close() in the queue.
            closing = self._closing.is_set()
            if self._deliver_all():
                if closing:
                    return
                self._closing.wait(self._interval)
            else:
                delay = self._retry_delays[min(self._failures, len(self._retry_delays)) - 1]
                if closing:
                    self._abandoned.wait(min(delay, _MAX_CLOSING_DELAY))
                else:
                    self._closing.wait(delay)

    def _deliver_all(self) -> bool:
        """Empties the queue; False when a delivery failed or the writer was abandoned."""
        while self._deliveries or self._take():
            if self._abandoned.is_set():
                return False
            try:
                self._deliver(self._deliveries[0], self._failures)
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._failed(error)
                return False
            with self._lock:
                self._deliveries.popleft()
            self._succeeded()
        return True

    def _take(self) -> bool:
        """Prepares the next records; False when there are none."""
        while self._records and not self._abandoned.is_set():
            with self._lock:
                records = [self._records.popleft() for _ in range(min(len(self._records), _CHUNK))]
                try:
                    self._deliveries.extend(list(self._prepare(records)))
                except Exception as error:
                    self._error = error
                    self._dropped += len(records)
                    logger.warning(
                        "Tracking to %s drops %d records that cannot be prepared.",
                        self._name,
                        len(records),
                        exc_info=True,
                    )
            if self._deliveries:
                return True
        return False

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._failures += 1
        # Once closing, what is left over is the caller's to report.
        if self._failures == 1 and not self._closing.is_set():
            logger.warning(
                "Tracking to %s is interrupted; training goes on, and what it records is kept in"
                " memory and sent when the store is back: %s",
                self._name,
                self._describe(error),
            )

    def _succeeded(self) -> None:
        if self._failures:
            logger.info("Tracking to %s goes on.", self._name)
            self._failures = 0
            self._error = None
