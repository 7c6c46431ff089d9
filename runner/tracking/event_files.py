"""TensorBoard's event files as a backend."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.system.imports import without_import_notes
from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.encoding import Delivery, MetricPoint
from runner.tracking.journal import Metrics, Record


class EventFiles(Destination):
    """The metrics of one run as event files; TensorBoard has no place for other records.

    A point that is delivered twice is in the file twice, with the same step and time, and
    TensorBoard draws it once.
    """

    def __init__(self, directory: Path) -> None:
        with without_import_notes():
            import tensorflow as tf
        self.name = str(directory)
        self._v1 = tf.compat.v1
        with tf.Graph().as_default():  # The writer refuses to work eagerly.
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
        """Does nothing, because event files hold no status."""
