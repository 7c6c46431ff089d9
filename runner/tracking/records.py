"""What a run records, as plain values that wait in the journal to be delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from runner.tracking.tracker import RunStatus

# The first three are named tuples, not dataclasses: a frozen dataclass costs the training
# step twice as long to make.


class Metrics(NamedTuple):
    """Values of metrics at one global step; `time` in milliseconds since the epoch."""

    values: Mapping[str, float]
    step: int
    time: int


class Parameters(NamedTuple):
    """Values that are fixed for the run."""

    values: Mapping[str, object]


class Tags(NamedTuple):
    """Tags to set."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Artifact:
    """A file or directory to copy into `folder` of the run's artifacts."""

    path: Path
    folder: str = ""


@dataclass(frozen=True)
class Text:
    """Text to keep as the artifact `file`."""

    text: str
    file: str


@dataclass(frozen=True)
class Dataset:
    """A data set that the run reads.

    Attributes:
      name: its name.
      digest: changes when the data set does; at most 36 characters are kept.
      context: what the run does with it, such as `train` or `validation`.
      source: where it comes from, in words.
      sizes: what is known of its size, such as `{"examples": 1200}`.
    """

    name: str
    digest: str
    context: str = ""
    source: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


class End(NamedTuple):
    """How the run ended, and how many records could not be written to the journal.

    `time` is when it did, in milliseconds since the epoch; None where something was only added to
    a run that had ended before, and in journals that do not hold it yet.
    """

    status: RunStatus
    lost: int = 0
    time: int | None = None


Record: TypeAlias = Metrics | Parameters | Tags | Artifact | Text | Dataset | End


class MetricPoint(NamedTuple):
    """One value of one metric; `time` in milliseconds since the epoch."""

    key: str
    value: float
    time: int
    step: int


class Parameter(NamedTuple):
    """One parameter."""

    key: str
    value: str


class Tag(NamedTuple):
    """One tag."""

    key: str
    value: str


Entry: TypeAlias = MetricPoint | Parameter | Tag | Artifact | Text | Dataset


@dataclass(frozen=True)
class Batch:
    """Metrics, parameters and tags that one request delivers."""

    metrics: tuple[MetricPoint, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    tags: tuple[Tag, ...] = ()

    def __len__(self) -> int:
        return len(self.metrics) + len(self.parameters) + len(self.tags)

    def halves(self) -> tuple[Batch, Batch]:
        """Returns two batches that hold everything of this one; the first has len // 2 entries."""
        middle = len(self) // 2
        metrics = min(middle, len(self.metrics))
        parameters = min(middle - metrics, len(self.parameters))
        tags = middle - metrics - parameters
        return (
            Batch(self.metrics[:metrics], self.parameters[:parameters], self.tags[:tags]),
            Batch(self.metrics[metrics:], self.parameters[parameters:], self.tags[tags:]),
        )


Delivery: TypeAlias = Batch | Artifact | Text | Dataset


def summary(items: Iterable[Delivery]) -> str:
    """Returns what `items` hold, such as `1,200 metric values, artifact plan.txt`."""
    counts: Counter[str] = Counter()
    artifacts: list[str] = []
    for item in items:
        match item:
            case Batch():
                counts["metric value"] += len(item.metrics)
                counts["parameter"] += len(item.parameters)
                counts["tag"] += len(item.tags)
            case Artifact():
                artifacts.append(f"artifact {item.path.name}")
            case Text():
                artifacts.append(f"artifact {item.file}")
            case Dataset():
                artifacts.append(f"data set {item.name}")
    parts = [
        f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count
    ]
    return ", ".join(parts + list(dict.fromkeys(artifacts)))


def named(delivery: Delivery) -> str:
    """Returns the names of what a delivery holds, such as `metric 'loss'`."""
    if isinstance(delivery, Batch):
        names = [f"metric {point.key!r}" for point in delivery.metrics]
        names += [f"parameter {parameter.key!r}" for parameter in delivery.parameters]
        names += [f"tag {tag.key!r}" for tag in delivery.tags]
        return ", ".join(names)
    return summary([delivery])


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
