"""A journal, a store in memory that follows it, and what a run records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.encoding import Delivery, Encoder, Entry, MetricPoint, Tag, batches
from runner.tracking.follower import Follower
from runner.tracking.journal import Journal, Metrics, Record
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory

URI = "memory:"


class Killed(BaseException):
    """The follower's process is killed."""


class Memory(Destination):
    """A store that outlives its clients, and holds a point once as MLflow's primary key does."""

    def __init__(self) -> None:
        self.run_id, self.experiment_id, self.name = "r1", "1", "memory"
        self.points: set[tuple[str, Any, int, int]] = set()
        self.tags: dict[str, str] = {}
        self.others: list[Entry] = []
        self.statuses: list[tuple[Status, str]] = []
        self.end_times: list[int | None] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        return batches(Encoder({}, {}).encode(records))

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        self.before()
        for entry in delivery:
            if isinstance(entry, MetricPoint):
                value: float | str = "nan" if math.isnan(entry.value) else entry.value
                self.points.add((entry.key, value, entry.time, entry.step))
            elif isinstance(entry, Tag):
                self.tags[entry.key] = entry.value
            else:
                self.others.append(entry)
        self.after()

    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        self.before()
        self.statuses.append((status, missing))
        self.end_times.append(end_time)
        self.after()

    def describe(self, error: Exception) -> str:
        return f"described {error}"

    def history(self, key: str) -> list[tuple[int, float]]:
        return sorted((step, value) for name, value, _, step in self.points if name == key)


def edit_identity(directory: TrackingDirectory, **changes: Any) -> None:
    """Changes fields of a run's identity."""
    identity = directory.identity()
    assert identity is not None
    directory.write_identity(replace(identity, **changes))


def make_directory(path: Path) -> TrackingDirectory:
    directory = TrackingDirectory(path)
    directory.write_identity(RunIdentity("u", "digits", "one", {}, None, (URI,)))
    directory.delivery_lock(URI)
    return directory


def never(seconds: float) -> None:
    raise AssertionError("nothing is left to wait for")


def follow(
    directory: TrackingDirectory, store: Destination, wait: Callable[[float], None] = never
) -> bool:
    return Follower(directory, URI, lambda *_: store, wait=wait).run()


def record(directory: TrackingDirectory, *records: Record, after: int | None = None) -> None:
    """Resumes from step `after`, records and dies, as a process of a run does."""
    journal = Journal(directory.journal)
    if after is not None:
        journal.rewind(after)
    for item in records:
        journal.append(item)
    journal.close()


def loss(step: int, time: int = 0, value: float | None = None) -> Metrics:
    return Metrics({"loss": step / 3 if value is None else value}, step, time)


def twin(steps: int) -> list[tuple[int, float]]:
    return [(step, step / 3) for step in range(1, steps + 1)]
