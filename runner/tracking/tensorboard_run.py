"""Event files for TensorBoard, written from a run's journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tensorflow as tf

from runner.tracking.follower import Destination
from runner.tracking.records import Batch, Delivery, MetricPoint, Metrics, Record
from runner.tracking.tracker import RunStatus


class TensorBoardRun(Destination):
    """The metrics of one run as event files; TensorBoard has no place for anything else.

    A point that is delivered twice stands in the file twice, with the same step and time, where
    TensorBoard draws it once.

    Args:
      directory: the folder of the event files.
    """

    def __init__(self, directory: Path) -> None:
        self.run_id, self.experiment_id = None, None
        self.name = str(directory)
        with tf.Graph().as_default():  # Its writer refuses to work eagerly.
            self._writer = tf.compat.v1.summary.FileWriter(str(directory))

    @property
    def refused(self) -> Sequence[Delivery]:
        """Nothing is refused."""
        return ()

    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields all metrics at once."""
        points = tuple(
            MetricPoint(name, float(value), record.time, int(record.step))
            for record in records
            if isinstance(record, Metrics)
            for name, value in record.values.items()
        )
        if points:
            yield Batch(points)

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Writes them out."""
        if not isinstance(delivery, Batch):
            raise TypeError(f"event files hold no {type(delivery).__name__}")
        for name, value, time, step in delivery.metrics:
            summary = tf.compat.v1.Summary(
                value=[tf.compat.v1.Summary.Value(tag=name, simple_value=value)]
            )
            event = tf.compat.v1.Event(wall_time=time / 1000, step=step, summary=summary)
            self._writer.add_event(event)
        self._writer.flush()

    def finish(self, status: RunStatus, missing: str, end_time: int | None = None) -> None:
        """Writes out what is left; TensorBoard knows no status and no end."""
        self._writer.flush()

    def describe(self, error: Exception) -> str:
        """Returns its kind and words."""
        return f"{type(error).__name__}: {error}"
