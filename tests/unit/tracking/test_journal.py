from __future__ import annotations

import errno
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from runner.system.atomic_files import sync_to_disk
from runner.system.status import Status
from runner.tracking.journal import (
    Artifact,
    Dataset,
    End,
    Journal,
    Line,
    Metrics,
    Parameters,
    Record,
    Repeated,
    Tags,
    Text,
    decode_line,
    encode_line,
    read_lines,
    segments,
)

# Lines

_text = st.text(st.characters())  # Lone surrogates too.
_numbers = st.floats(allow_nan=False)
_counts = st.integers(0, 2**53)
_records: st.SearchStrategy[Record] = st.one_of(
    st.builds(Metrics, st.dictionaries(_text, _numbers), _counts, _counts),
    st.builds(Repeated, st.dictionaries(_text, _numbers), _counts, _counts),
    st.builds(Parameters, st.dictionaries(_text, _text)),
    st.builds(Tags, st.dictionaries(_text, _text)),
    st.builds(Artifact, _text.filter(lambda text: "\0" not in text).map(Path), _text),
    st.builds(Text, _text, _text),
    st.builds(Dataset, _text, _text, _text, _text, st.dictionaries(_text, _counts)),
    st.builds(End, st.sampled_from(Status), _counts, st.none() | _counts),
)


@given(_records)
def test_a_record_is_one_line_and_comes_back(record: Record) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == record


@given(_records, st.data())
def test_a_changed_byte_is_noticed(record: Record, data: st.DataObject) -> None:
    line = bytearray(encode_line(record))
    position = data.draw(st.integers(0, len(line) - 2))
    line[position] ^= data.draw(st.integers(1, 255))
    assert decode_line(bytes(line)) is None


@pytest.mark.parametrize(
    ("body", "record"),
    [
        (b'["m",{"loss":0.5},7,1700]', Metrics({"loss": 0.5}, 7, 1700)),
        (b'["p",{"rate":"0.1"}]', Parameters({"rate": "0.1"})),
        (b'["t",{"host":"here"}]', Tags({"host": "here"})),
        (b'["a","plan.txt","plans"]', Artifact(Path("plan.txt"), "plans")),
        (b'["x","well","report.txt"]', Text("well", "report.txt")),
        (b'["d","n","abc","train","s",{"n":3}]', Dataset("n", "abc", "train", "s", {"n": 3})),
        (b'["e","KILLED",2,1700]', End(Status.KILLED, 2, 1700)),
        # Before the time was kept.
        (b'["e","KILLED",2]', End(Status.KILLED, 2, None)),
    ],
)
def test_journals_of_the_version_before_are_read(body: bytes, record: Record) -> None:
    assert decode_line(b"%08x %b\n" % (zlib.crc32(body), body)) == record


def test_any_scalar_is_a_number() -> None:
    values = {"nan": math.nan, "numpy": np.float32(0.5), "tensorflow": tf.constant(2)}
    decoded = decode_line(encode_line(Metrics(values, 1, 2)))
    assert isinstance(decoded, Metrics)
    assert str(decoded.values) == "{'nan': nan, 'numpy': 0.5, 'tensorflow': 2.0}"


# Segments


def metrics(step: int) -> Metrics:
    return Metrics({"loss": step / 3}, step, 0)


def records(directory: Path) -> list[list[Record | None]]:
    return [[line.record for line in read_lines(each.path)] for each in segments(directory)]


def test_what_is_appended_is_in_the_file_at_once_and_read_from_any_line(tmp_path: Path) -> None:
    assert segments(tmp_path / "journal") == []
    journal = Journal(tmp_path / "journal")
    for step in range(3):
        journal.append(metrics(step))
    (tmp_path / "journal" / "notes.journal").touch()
    (segment,) = segments(tmp_path / "journal")
    lines = list(read_lines(segment.path))
    assert [line.record for line in lines] == [metrics(step) for step in range(3)]
    assert list(read_lines(segment.path, lines[0].end)) == lines[1:]
    assert lines[-1].end == segment.path.stat().st_size
    journal.append(metrics(3))
    assert [line.record for line in read_lines(segment.path, lines[-1].end)] == [metrics(3)]
    sync_to_disk(segment.path)
    journal.close()


@given(st.lists(_records, min_size=1, max_size=5), st.data())
def test_a_torn_tail_is_left_and_a_damaged_line_is_reported(
    tmp_path_factory: pytest.TempPathFactory, written: list[Record], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "0001.journal"
    whole = b"".join(map(encode_line, written))
    path.write_bytes(whole)
    lines = list(read_lines(path))
    assert [line.record for line in lines] == written
    size = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:size])
    assert list(read_lines(path)) == [line for line in lines if line.end <= size]
    damaged = data.draw(st.integers(0, len(lines) - 1))
    content = bytearray(whole)
    content[lines[damaged].end - 2] ^= 1
    path.write_bytes(content)
    lines[damaged] = Line(None, lines[damaged].end)
    assert list(read_lines(path)) == lines


def test_going_back_begins_a_segment_that_says_how_far(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.rewind(0)  # Nothing is recorded yet.
    for step in (4, 5):
        first.append(metrics(step))
    first.close()
    second = Journal(tmp_path)
    second.append(Tags({"t": "resumed"}))
    second.rewind(3)
    second.append(metrics(4))
    second.append(metrics(6))
    second.rewind(6)  # Not back.
    second.append(metrics(7))
    second.rewind(5)
    second.append(metrics(6))
    second.close()
    assert [each.after for each in segments(tmp_path)] == [None, None, 3, 5]
    again = records(tmp_path)
    assert [[isinstance(record, Repeated) for record in segment] for segment in again[2:]] == [
        [True, False, False],
        [True],
    ]
    assert again == [
        [metrics(4), metrics(5)],
        [Tags({"t": "resumed"})],
        [metrics(4), metrics(6), metrics(7)],
        [metrics(6)],
    ]


def test_a_record_that_json_cannot_hold_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    journal.append(Metrics({(1, 2): 0.5}, 1, 2))  # type: ignore[dict-item]
    journal.append(metrics(1))
    journal.close()
    assert journal.lost == 1
    assert records(tmp_path) == [[metrics(1)]]
    assert "that the journal cannot hold" in caplog.text


class Disk:
    """Writes as much as there is room for, as a disk does that fills up."""

    def __init__(self, write: Callable[[int, bytes], int]) -> None:
        self.room = 0
        self.write = write

    def __call__(self, descriptor: int, data: bytes) -> int:
        size = min(self.room, len(data))
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= size
        return self.write(descriptor, data[:size])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(os.write)
    monkeypatch.setattr(os, "write", disk)
    return disk


def test_a_full_disk_loses_nothing_that_fits_into_memory(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    disk.room = 100  # In the midst of the second line.
    for step in range(20):
        journal.append(metrics(step))
    assert len(records(tmp_path)[0]) == 2
    disk.room = 10_000
    journal.append(metrics(20))
    journal.close()
    assert records(tmp_path) == [[metrics(step) for step in range(21)]]
    assert journal.lost == 0
    assert caplog.text.count("No space left on device") == 1


def test_what_does_not_fit_into_memory_or_still_waits_at_the_end_is_counted(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, capacity=250)
    for step in range(20):
        journal.append(metrics(step))
    lost = journal.lost
    assert 10 < lost < 20
    journal.rewind(1)
    assert journal.lost == 20
    assert f"{20 - lost} records could not be written" in caplog.text
    journal.append(metrics(2))
    journal.close()
    assert journal.lost == 21
    assert records(tmp_path) == [[], []]
