"""Single entries gathered into the largest requests that MLflow accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.tracking.records import Batch, Delivery, Entry, MetricPoint, Parameter, Tag

MAX_ENTRIES = 1000
"""Metrics, parameters and tags together in one request."""
MAX_PARAMETERS = 100
MAX_TAGS = 100


def batches(entries: Iterable[Entry]) -> Iterator[Delivery]:
    """Yields `entries` in their order, neighbouring metrics, parameters and tags together.

    Of several values for one tag in a batch only the last is kept.
    """
    metrics: list[MetricPoint] = []
    parameters: list[Parameter] = []
    tags: dict[str, Tag] = {}

    def gathered() -> Iterator[Batch]:
        if metrics or parameters or tags:
            yield Batch(tuple(metrics), tuple(parameters), tuple(tags.values()))
        metrics.clear()
        parameters.clear()
        tags.clear()

    for entry in entries:
        if isinstance(entry, MetricPoint):
            metrics.append(entry)
        elif isinstance(entry, Parameter):
            parameters.append(entry)
        elif isinstance(entry, Tag):
            tags[entry.key] = entry
        else:
            yield from gathered()
            yield entry
        if (
            len(metrics) + len(parameters) + len(tags) == MAX_ENTRIES
            or len(parameters) == MAX_PARAMETERS
            or len(tags) == MAX_TAGS
        ):
            yield from gathered()
    yield from gathered()
