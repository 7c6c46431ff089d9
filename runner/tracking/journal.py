"""The durable list of what a run recorded: appended to by the run, read by whoever delivers it."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from runner.tracking.journal_line import decode_line, encode_line
from runner.tracking.records import Metrics, Record

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d+)(?:-after-(\d+))?\.journal")


class Segment(NamedTuple):
    """One file of a journal, written by one process.

    Attributes:
      number: segments are read in the order of their numbers, from 1.
      after: the run went on from this step when the segment was begun, so that metrics of later
        steps in earlier segments have been, or will be, recorded again; None where it did not
        go back.
      path: the file.
    """

    number: int
    after: int | None
    path: Path


def segments(directory: Path) -> list[Segment]:
    """Returns the segments in `directory`, in their order; none when there is no such folder."""
    found = []
    for path in directory.glob("*.journal"):
        match = _NAME.fullmatch(path.name)
        if match:
            after = None if match[2] is None else int(match[2])
            found.append(Segment(int(match[1]), after, path))
    return sorted(found)


class Line(NamedTuple):
    """A whole line of a segment: its record, None for a damaged one, and where it ends."""

    record: Record | None
    end: int


def read_lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """Yields the whole lines of a segment from byte `offset` on.

    What follows the last line feed is a line still being written, or never to be finished.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield Line(decode_line(line), offset)


def write_out(path: Path) -> None:
    """Waits until what a segment holds is on the disk, whichever process wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """Appends records, each by one system call, so that the death of the process loses none.

    It does not wait for the disk: a failure of the whole machine may lose what the operating
    system still held, and whoever follows the journal has it written out about every second.

    What cannot be written, the disk being full, waits in memory and is written when that is
    possible again.

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
        # The latest step of a metric since the last rewind.
        self._last_step: int | None = None
        self._opened = 0
        self._unwritten = bytearray()
        self._failing = False
        self.lost = 0
        """Records that could not be kept."""

    def append(self, record: Record) -> None:
        """Writes a record at the end; never raises."""
        try:
            line = encode_line(record)
        except (TypeError, ValueError, RecursionError) as error:
            self.lost += 1
            logger.warning("What cannot be put into the journal is left out: %s", error)
            return
        with self._lock:
            if isinstance(record, Metrics):
                self._last_step = max(record.step, self._last_step or 0)
            if len(self._unwritten) + len(line) > self._capacity:
                self.lost += 1
                return
            self._unwritten += line
            self._write()

    def rewind(self, step: int) -> None:
        """Begins a segment for a run that goes on from `step`, where it had been further."""
        with self._lock:
            if self._last_step is None:
                goes_back = len(segments(self._directory)) > self._opened
            else:
                goes_back = self._last_step > step
            if not goes_back:
                return
            self._end_segment()
            self._after, self._last_step = step, None

    def close(self) -> None:
        """Writes what waits, if that is possible now, and closes the file."""
        with self._lock:
            self._end_segment()

    def _end_segment(self) -> None:
        if self._unwritten:
            self._write()
        if self._unwritten:
            left = self._unwritten.count(b"\n")
            self.lost += left
            logger.warning("%d records could not be written to %s.", left, self._directory)
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
        # Less than all when the disk is full: the next attempt goes on in the midst of the line.
        del self._unwritten[:written]
        self._failing = self._failing and bool(self._unwritten)

    def _open(self) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        number = max((each.number for each in segments(self._directory)), default=0) + 1
        suffix = "" if self._after is None else f"-after-{self._after}"
        path = self._directory / f"{number:04d}{suffix}.journal"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._opened += 1
        return descriptor
