"""One record as one line of text with its checksum, and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from runner.tracking.records import (
    Artifact,
    Dataset,
    End,
    Metrics,
    Parameters,
    Record,
    Tags,
    Text,
)
from runner.tracking.tracker import RunStatus

_CHECKSUM = 9  # Eight hexadecimal digits and a space.


def encode_line(record: Record) -> bytes:
    """Returns `CRC32 JSON` and a line feed; no line feed is within.

    Raises:
      TypeError, ValueError: the record holds what JSON has no words for, such as a name that
        is no text, or a loop.
    """
    if isinstance(record, Metrics):
        # The only kind that is written at every step: nothing else is on its way.
        text = _encode(["m", record.values, record.step, record.time])
    else:
        text = _encode(_plain(record))
    body = text.encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_line(line: bytes) -> Record | None:
    """Returns the record of a whole line, or None when the line is damaged."""
    body = line[_CHECKSUM:-1]
    if line[:_CHECKSUM] != b"%08x " % zlib.crc32(body):
        return None
    kind, *values = json.loads(body)
    record: Record = _DECODERS[kind](*values)
    return record


def _plain(record: Record) -> list[Any]:
    match record:
        case Parameters():
            return ["p", {name: _text(value) for name, value in record.values.items()}]
        case Tags():
            return ["t", {name: str(value) for name, value in record.values.items()}]
        case Artifact():
            return ["a", str(record.path), record.folder]
        case Text():
            return ["x", record.text, record.file]
        case Dataset():
            return [
                "d",
                record.name,
                record.digest,
                record.context,
                record.source,
                dict(record.sizes),
            ]
        case End():
            return ["e", record.status.value, record.lost, record.time]
        case Metrics():
            return ["m", record.values, record.step, record.time]


_DECODERS: Mapping[str, Any] = {
    "m": Metrics,
    "p": Parameters,
    "t": Tags,
    "a": lambda path, folder: Artifact(Path(path), folder),
    "x": Text,
    "d": Dataset,
    "e": lambda status, lost, time=None: End(RunStatus(status), lost, time),
}


def _text(value: object) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def _number(value: object) -> float | str:
    """NumPy's and TensorFlow's numbers as Python's; what is no number stays for a note of it."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return str(value)


# Made once: `json.dumps` with any argument makes an encoder at every call.
_encode = json.JSONEncoder(default=_number, separators=(",", ":")).encode
