"""A tracker that hands what it records to a thread, and the destination that thread fills."""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner.tracking.background_writer import BackgroundWriter
from runner.tracking.batching import batches
from runner.tracking.encoding import Encoder
from runner.tracking.records import (
    Artifact,
    Delivery,
    Metrics,
    Parameters,
    Record,
    Tags,
    Text,
    summary,
)
from runner.tracking.tracker import RunStatus, Tracker

logger = logging.getLogger(__name__)

_STATUS_SECONDS = 5.0


class Destination(abc.ABC):
    """One run in a store, written to by whichever thread or process delivers."""

    @property
    @abc.abstractmethod
    def run_id(self) -> str:
        """The store's name of the run."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The store, in words to show."""

    @property
    @abc.abstractmethod
    def refused(self) -> Sequence[Delivery]:
        """What was delivered, and left out because the store would never take it."""

    @abc.abstractmethod
    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Delivers; twice the same delivery leaves the store as once would.

        What the store refuses for good is logged and left out, so that it does not hold back
        the rest.

        Args:
          delivery: what to deliver.
          failures: how often it has failed before.

        Raises:
          Exception: of any kind; the store cannot take it now, so it should be tried again.
        """

    @abc.abstractmethod
    def finish(self, status: RunStatus, missing: str) -> None:
        """Records how the run ended, and in a tag what is missing, if anything is.

        Raises:
          Exception: of any kind; it should be tried again.
        """

    @abc.abstractmethod
    def describe(self, error: Exception) -> str:
        """Returns one line about an error that this destination raised."""


class BackgroundTracker(Tracker):
    """Records one run from a thread of its own.

    Args:
      destination: the run to record into.
      encoder: knows the parameters and tags that the run already has.
      interval: seconds for which records gather before they are delivered together.
      drain_seconds: how long `close` delivers what is left before it gives up.
      capacity: calls whose records may wait; more are dropped, counted and reported.
    """

    def __init__(
        self,
        destination: Destination,
        encoder: Encoder,
        *,
        interval: float = 1.0,
        drain_seconds: float = 30.0,
        capacity: int = 200_000,
    ) -> None:
        def prepare(records: Sequence[Record]) -> Iterable[Delivery]:
            return batches(encoder.encode(records))

        self._destination = destination
        self._drain_seconds = drain_seconds
        self._closed = False
        self._writer: BackgroundWriter[Record, Delivery] = BackgroundWriter(
            prepare,
            destination.deliver,
            name=destination.name,
            interval=interval,
            capacity=capacity,
            describe=destination.describe,
        )

    def start(self) -> None:
        """Starts the thread; what was recorded before is delivered as well."""
        self._writer.start()

    @property
    def run_id(self) -> str:
        """The store's name of the run."""
        return self._destination.run_id

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Queues parameters."""
        self._writer.put(Parameters(dict(parameters)))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Queues metrics with the present time."""
        self._writer.put(Metrics(dict(metrics), step, time.time_ns() // 1_000_000))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Queues tags."""
        self._writer.put(Tags(dict(tags)))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Queues the path; the file or directory itself is read when its turn comes."""
        self._writer.put(Artifact(path, folder))

    def log_text(self, text: str, file: str) -> None:
        """Queues text."""
        self._writer.put(Text(text, file))

    def close(self, status: RunStatus) -> None:
        """Delivers for at most `drain_seconds`, then records the status within 5 seconds more.

        What was not delivered is logged as one warning and noted in a tag of the run.
        """
        if self._closed:
            return
        self._closed = True
        remainder = self._writer.close(self._drain_seconds)
        parts = [summary((*self._destination.refused, *remainder.deliveries, *remainder.records))]
        if remainder.dropped:
            parts.append(f"{remainder.dropped:,} records that found the queue full")
        missing = ", ".join(filter(None, parts))
        if missing:
            logger.warning(
                "Run %s: not delivered to %s: %s%s",
                self.run_id,
                self._destination.name,
                missing,
                self._because(remainder.error),
            )
        self._finish(status, missing)

    def _finish(self, status: RunStatus, missing: str) -> None:
        def deliver(status: RunStatus, failures: int) -> None:
            self._destination.finish(status, missing)

        # A second writer, for its retries and its bound in time.
        writer: BackgroundWriter[RunStatus, RunStatus] = BackgroundWriter(
            list,
            deliver,
            name=self._destination.name,
            retry_delays=(0.2, 0.5, 1.0),
            describe=self._destination.describe,
        )
        writer.put(status)
        writer.start()
        remainder = writer.close(_STATUS_SECONDS)
        if remainder:
            logger.warning(
                "Run %s: its status %s could not be recorded in %s%s",
                self.run_id,
                status.value,
                self._destination.name,
                self._because(remainder.error),
            )

    def _because(self, error: Exception | None) -> str:
        return f": {self._destination.describe(error)}" if error else ""
