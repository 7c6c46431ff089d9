from __future__ import annotations

import math
import zlib
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from runner.tracking.records import Artifact, Dataset, End, Metrics, Parameters, Record, Tags, Text

from runner.system.status import Status
from runner.tracking.journal import decode_line, encode_line


class Colour(Enum):
    red = 1


@pytest.mark.parametrize(
    "record",
    [
        Metrics({"loss": 0.1 + 0.2, "größe\n": -0.0, "tiny": 5e-324}, 7, 1_700_000_000_000),
        Metrics({"plus": math.inf, "minus": -math.inf}, 0, 0),
        Parameters({"rate": "0.1"}),
        Tags({"note": "two\nlines \x00 \ud800"}),
        Artifact(Path("plan.txt"), "plans"),
        Text("well\n", "report.txt"),
        Dataset("digits", "abc", "train", "here", {"examples": 3}),
        End(Status.KILLED, 2),
        End(Status.KILLED, 2, 1_700_000_000_000),
    ],
)
def test_a_record_is_one_line_and_comes_back(record: Record) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == record


def test_an_end_of_before_its_time_was_kept_is_read() -> None:
    body = b'["e","KILLED",2]'
    assert decode_line(b"%08x %b\n" % (zlib.crc32(body), body)) == End(Status.KILLED, 2, None)


def test_nan_and_numbers_of_numpy_come_back_as_numbers() -> None:
    record = Metrics({"nan": math.nan, "f": np.float32(0.5), "i": np.int64(3)}, 1, 2)  # type: ignore[dict-item]
    decoded = decode_line(encode_line(record))
    assert isinstance(decoded, Metrics)
    assert math.isnan(decoded.values["nan"])
    assert (decoded.values["f"], decoded.values["i"]) == (0.5, 3.0)


def test_what_is_no_number_stays_for_a_note_of_it() -> None:
    record = Metrics({"loss": [1.0, 2.0], "path": Path("x")}, 1, 2)  # type: ignore[dict-item]
    decoded = decode_line(encode_line(record))
    assert isinstance(decoded, Metrics)
    assert dict[str, object](decoded.values) == {"loss": [1.0, 2.0], "path": "x"}


def test_parameters_are_written_as_people_write_them() -> None:
    assert decode_line(encode_line(Parameters({"c": Colour.red, "n": None, "l": [1]}))) == (
        Parameters({"c": "red", "n": "None", "l": "[1]"})
    )


def test_a_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(TypeError, match="keys must be"):
        encode_line(Metrics({(1, 2): 0.5}, 1, 2))  # type: ignore[dict-item]


@pytest.mark.parametrize("position", range(0, 40, 3))
def test_a_changed_byte_is_noticed(position: int) -> None:
    line = bytearray(encode_line(Metrics({"loss": 0.25}, 7, 1_700_000_000_000)))
    line[position] ^= 1
    assert decode_line(bytes(line)) is None
