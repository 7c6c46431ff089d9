"""The interface of a store that a run is recorded in."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence

from runner.system.status import Status
from runner.tracking.encoding import Delivery, Entry
from runner.tracking.journal import Record


class Destination(abc.ABC):
    """One run in a store.

    A store is a subclass in a module of its own, with an entry in `store_kinds.STORE_KINDS`.
    """

    run_id: str | None = None
    """The store's id of the run; None for a store without ids."""
    experiment_id: str | None = None
    """The store's id of the experiment; None for a store without ids."""
    name: str
    """The store, for display."""
    refused: Sequence[Entry] = ()
    """Entries that the store will never accept, and that were left out."""

    @abc.abstractmethod
    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields `records`, in their order, gathered into deliveries."""

    @abc.abstractmethod
    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Delivers, idempotently; `failures` counts the attempts that have failed before.

        A delivery that the store will never accept is logged and left out, so that it does not
        hold back the rest.

        Raises:
          Exception: of any kind; the store is not available now, and the caller tries again.
        """

    @abc.abstractmethod
    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        """Records the status of the run, and a description of any records that are missing.

        Args:
          status: the status; `Status.RUNNING` for a run that has not ended.
          missing: the missing records, for display; empty when the store has all of them.
          end_time: when the run ended, in milliseconds since the epoch; None is now.

        Raises:
          Exception: of any kind; the caller tries again.
        """

    def describe(self, error: Exception) -> str:
        """Returns one line about an error that this destination raised, with passwords masked."""
        return f"{type(error).__name__}: {error}"
