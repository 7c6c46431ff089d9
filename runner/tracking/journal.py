"""The journal of a run: a file with one line for each record."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from runner.system.status import Status

logger = logging.getLogger(__name__)

HISTOGRAM = ".histogram.json"
"""The end of the names of artifacts that are histograms."""

RECORDED_AGAIN_TAG = "runner.metrics_recorded_differently"
"""Tag that names the metrics with several values at one step, one in each line."""

_CHECKSUM = 9  # Eight hexadecimal digits and a space.
_NAME = re.compile(r"(\d+)(?:-after-(\d+))?\.journal")


# A named tuple: constructing a frozen dataclass costs the training step twice as much.
class Metrics(NamedTuple):
    """Values of metrics at one global step; `time` in milliseconds since the epoch."""

    values: Mapping[str, float]
    step: int
    time: int


class Repeated(Metrics):
    """Values that the journal already holds, of a step that the run repeats."""


@dataclass(frozen=True)
class Parameters:
    """Values that are fixed for the run, as strings."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Tags:
    """Tags to set."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Artifact:
    """A file or directory to copy into `folder` of the run's artifacts.

    `step` is the global step at which it was recorded and `time` in milliseconds since the epoch;
    both are None for what belongs to the run as a whole.
    """

    path: Path
    folder: str = ""
    step: int | None = None
    time: int | None = None


@dataclass(frozen=True)
class Text:
    """A string to store as the artifact `file`."""

    text: str
    file: str


@dataclass(frozen=True)
class Dataset:
    """A data set that the run reads.

    Attributes:
      name: its name.
      digest: changes when the data set does; the store holds 36 characters.
      context: its use in the run, such as `train`.
      source: a description of its origin.
      sizes: its known sizes, such as `{"examples": 1200}`.
    """

    name: str
    digest: str
    context: str = ""
    source: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """How the run ended.

    Attributes:
      status: the final status.
      lost: how many records could not be written to the journal.
      time: when it ended, in milliseconds since the epoch; None for records added to a run that
        had ended before.
    """

    status: Status
    lost: int = 0
    time: int | None = None


Record: TypeAlias = Metrics | Parameters | Tags | Artifact | Text | Dataset | End

# A line has the letter of the record's kind, and the record's fields in their order.
_KINDS: Mapping[str, Any] = {
    "m": Metrics,
    "r": Repeated,
    "p": Parameters,
    "t": Tags,
    "a": Artifact,
    "x": Text,
    "d": Dataset,
    "e": End,
}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    # Scalars of NumPy and TensorFlow are numbers too.
    return dict(value) if isinstance(value, Mapping) else float(value)  # type: ignore[arg-type]


# Constructed once: `json.dumps` with any argument constructs an encoder at every call.
_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def encode_line(record: Record) -> bytes:
    """Returns `CRC32 JSON` and a line feed, the only one in it.

    Raises:
      TypeError, ValueError: JSON cannot represent the record, such as a value that is not a number.
    """
    fields = record if isinstance(record, tuple) else vars(record).values()
    body = _encode([_LETTERS[type(record)], *fields]).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_line(line: bytes) -> Record | None:
    """Returns the record of a whole line, or None when the line is damaged."""
    body = line[_CHECKSUM:-1]
    if line[:_CHECKSUM] != b"%08x " % zlib.crc32(body):
        return None
    letter, first, *rest = json.loads(body)
    kind = _KINDS[letter]
    if kind in (Artifact, End):
        first = Path(first) if kind is Artifact else Status(first)
    record: Record = kind(first, *rest)
    return record


class Segment(NamedTuple):
    """One file of a journal, written by one process.

    Attributes:
      number: the place of the segment in the journal, from 1.
      after: the step from which the run resumed at the beginning of the segment, so that it takes
        later steps of earlier segments again; None where it did not go back.
      path: the file.
    """

    number: int
    after: int | None
    path: Path


def segments(directory: Path) -> list[Segment]:
    """Returns the segments in `directory`, in their order; empty when there is no such folder."""
    listed = []
    for path in directory.glob("*.journal"):
        match = _NAME.fullmatch(path.name)
        if match:
            after = None if match[2] is None else int(match[2])
            listed.append(Segment(int(match[1]), after, path))
    return sorted(listed)


class Line(NamedTuple):
    """A whole line of a segment: its record, None for a damaged one, and where it ends."""

    record: Record | None
    end: int


def read_lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """Yields the whole lines of a segment from byte `offset` on.

    Bytes after the last line feed are a line that is still being written, or was never finished.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield Line(decode_line(line), offset)


def history(directory: Path) -> dict[int, dict[str, float]]:
    """Returns step -> metric -> value; of steps that were recorded again, the last values."""
    steps: dict[int, dict[str, float]] = {}
    for segment in segments(directory):
        if segment.after is not None:
            steps = {step: values for step, values in steps.items() if step <= segment.after}
        for record, _ in read_lines(segment.path):
            if isinstance(record, Metrics):
                steps.setdefault(record.step, {}).update(record.values)
    return dict(sorted(steps.items()))


class Journal:
    """Appends records, each by one system call, so that the death of the process loses none.

    It alone decides what is recorded once. A run that goes back takes steps again; values that the
    journal has of them are written as `Repeated`, which no store is sent, and their artifacts not
    at all. A value that differs is another one of the same step: it is written as `Metrics`, and
    the tag `runner.metrics_recorded_differently` names its metric.

    It does not wait for the disk: a failure of the whole machine may lose records that the
    operating system still held; the follower syncs the journal about every second.

    Records that a full disk does not take wait in memory until it does.

    Args:
      directory: the folder of the segments; it is created.
      capacity: bytes that may wait; records beyond are lost, counted and reported.
    """

    def __init__(self, directory: Path, capacity: int = 2**24) -> None:
        self._directory = directory
        self._capacity = capacity
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._after: int | None = None
        # The latest step of a record since the last rewind.
        self._last_step: int | None = None
        self._opened = 0
        # (name, step) -> value of metrics and artifacts that may be recorded again.
        self._known: dict[tuple[str, int], float] = {}
        self._differing: set[str] = set()
        self._unwritten = bytearray()
        self._failing = False
        self.lost = 0
        """Records that could not be kept."""

    def append(self, record: Record) -> None:
        """Writes a record at the end; never raises."""
        with self._lock:
            try:
                if self._known:
                    lines = b"".join(map(encode_line, self._parts(record)))
                else:
                    lines = encode_line(record)
            except (TypeError, ValueError, RecursionError) as error:
                self.lost += 1
                logger.warning("A record that the journal cannot hold is left out: %s", error)
                return
            step = getattr(record, "step", None)
            if step is not None:
                self._last_step = max(step, self._last_step or 0)
            if len(self._unwritten) + len(lines) > self._capacity:
                self.lost += 1
            elif lines:
                self._unwritten += lines
                self._write()

    def rewind(self, step: int) -> None:
        """Begins a segment for a run that resumes from `step`, if it had been further."""
        with self._lock:
            if self._last_step is None:
                goes_back = len(segments(self._directory)) > self._opened
            else:
                goes_back = self._last_step > step
            if not goes_back:
                return
            self._end_segment()
            self._after, self._last_step = step, None
            self._read_known(step)

    def add(self, step: int) -> None:
        """Prepares for records of `step`, which may have been recorded, of a run that has ended."""
        with self._lock:
            self._read_known(step)

    def close(self) -> None:
        """Writes the waiting records, if that is possible now, and closes the file."""
        with self._lock:
            self._end_segment()

    def _read_known(self, step: int) -> None:
        """Reads what the journal has of `step` and later ones."""
        self._known = {}
        for segment in segments(self._directory):
            for record, _ in read_lines(segment.path):
                # The step itself too: what is recorded of it after its checkpoint comes again.
                if isinstance(record, Metrics) and record.step >= step:
                    for name, value in record.values.items():
                        self._known[name, record.step] = value
                elif isinstance(record, Artifact) and record.step is not None:
                    if record.step >= step:
                        self._known[_name(record), record.step] = 0.0
                elif isinstance(record, Tags) and RECORDED_AGAIN_TAG in record.values:
                    self._differing.update(record.values[RECORDED_AGAIN_TAG].split("\n"))

    def _parts(self, record: Record) -> Iterator[Record]:
        """Yields what of a record the journal does not have, and the rest as repeated."""
        if isinstance(record, Metrics):
            yield from self._metrics(record)
        elif isinstance(record, Artifact) and record.step is not None:
            if self._known.pop((_name(record), record.step), None) is None:
                yield record
        else:
            yield record

    def _metrics(self, record: Metrics) -> Iterator[Record]:
        new, repeated, differing = {}, {}, set(self._differing)
        for name, value in record.values.items():
            known = self._known.pop((name, record.step), None)
            if known is None:
                new[name] = value
            elif known == float(value) or (math.isnan(known) and math.isnan(value)):
                repeated[name] = value
            else:
                new[name] = value
                differing.add(name)
        if new:
            yield record._replace(values=new)
        if repeated and self._after is not None:
            yield Repeated(repeated, record.step, record.time)
        if differing != self._differing:
            self._differing = differing
            yield Tags({RECORDED_AGAIN_TAG: "\n".join(sorted(differing))})

    def _end_segment(self) -> None:
        if self._unwritten:
            self._write()
        if self._unwritten:
            count = self._unwritten.count(b"\n")
            self.lost += count
            logger.warning("%d records could not be written to %s.", count, self._directory)
            self._unwritten.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._after = None

    def _write(self) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            written = os.write(self._descriptor, self._unwritten)
        except OSError as error:
            if not self._failing:
                logger.warning(
                    "What the run records waits in memory, because it cannot be written to %s: %s",
                    self._directory,
                    error,
                )
            self._failing = True
            return
        # Less than all when the disk is full: the next attempt continues within the line.
        del self._unwritten[:written]
        self._failing = self._failing and bool(self._unwritten)

    def _open(self) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        number = max((segment.number for segment in segments(self._directory)), default=0) + 1
        suffix = "" if self._after is None else f"-after-{self._after}"
        path = self._directory / f"{number:04d}{suffix}.journal"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._opened += 1
        return descriptor


def _name(artifact: Artifact) -> str:
    return f"artifact {artifact.folder}/{artifact.path.name}"
