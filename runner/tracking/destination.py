"""The interface of a store to whoever delivers a journal to it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence

from runner.tracking.records import Delivery, Record
from runner.tracking.tracker import RunStatus


class Destination(abc.ABC):
    """One run in a store."""

    run_id: str | None
    """The store's name of the run, if it gives names."""
    experiment_id: str | None
    """The store's name of the run's experiment, likewise."""
    name: str
    """The store, in words to show."""

    @property
    @abc.abstractmethod
    def refused(self) -> Sequence[Delivery]:
        """What was delivered, and left out because the store would never take it."""

    @abc.abstractmethod
    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields `records`, in their order, in the portions in which they are delivered."""

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
    def finish(self, status: RunStatus, missing: str, end_time: int | None = None) -> None:
        """Records how the run ended, or that it goes on, and what is missing, if anything is.

        Args:
          status: how it ended; `RunStatus.RUNNING` for a run that goes on.
          missing: what is missing, in words; empty for nothing.
          end_time: when it ended, in milliseconds since the epoch; None is now.

        Raises:
          Exception: of any kind; it should be tried again.
        """

    @abc.abstractmethod
    def describe(self, error: Exception) -> str:
        """Returns one line about an error that this destination raised."""
