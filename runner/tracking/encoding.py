"""Records as deliveries: names and values within MLflow's limits, gathered into batches."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from runner.tracking.journal import Artifact, Dataset, Metrics, Parameters, Record, Tags, Text

MAX_ENTRIES = 1000
"""Metrics, parameters and tags together in one request."""
MAX_PARAMETER_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_KEY = 250
"""Characters that MLflow accepts in the name of a parameter, metric or tag."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. :/]|_(?=x[0-9A-F]{4})")
_ESCAPED = re.compile(r"_x(10[0-9A-F]{4}|[0-9A-F]{4,5})_")

PARAMETERS_CHANGED_TAG = "runner.parameters_changed"

# Enough of a changed value to recognise it; the whole of the new one is in the config.
_MAX_CHANGED_VALUE = 200


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

Delivery: TypeAlias = tuple[Entry, ...]
"""The entries of one request: metrics, parameters and tags together, or one of another kind."""

# Kind of entry -> its name, and how many of it one request takes.
_KINDS: Mapping[type[Entry], tuple[str, int]] = {
    MetricPoint: ("metric value", MAX_ENTRIES),
    Parameter: ("parameter", 100),
    Tag: ("tag", 100),
}


def description(delivery: Delivery) -> str:
    """Returns the names of a delivery's entries, each once, such as `metric value 'loss'`."""
    return ", ".join(dict.fromkeys(map(_described, delivery)))


def _described(entry: Entry) -> str:
    match entry:
        case Artifact():
            return f"artifact {entry.path.name}"
        case Text():
            return f"artifact {entry.file}"
        case Dataset():
            return f"data set {entry.name}"
    return f"{_KINDS[type(entry)][0]} {entry.key!r}"


def batches(entries: Iterable[Entry]) -> Iterator[Delivery]:
    """Yields `entries` in their order, neighbouring metrics, parameters and tags together."""
    gathered: list[Entry] = []
    counts: Counter[type[Entry]] = Counter()
    for entry in entries:
        kind = type(entry)
        alone = kind not in _KINDS
        full = len(gathered) == MAX_ENTRIES or alone or counts[kind] == _KINDS[kind][1]
        if gathered and full:
            yield tuple(gathered)
            gathered.clear()
            counts.clear()
        if alone:
            yield (entry,)
        else:
            gathered.append(entry)
            counts[kind] += 1
    if gathered:
        yield tuple(gathered)


def encode_key(key: str) -> str:
    """Returns `key` in the characters that MLflow allows in names.

    A character outside letters, digits and `_-. :/` becomes `_xHHHH_`, its code point in
    hexadecimal, as in ECMA-376; so do the dots and slashes of a name that MLflow would refuse
    as a path (`a//b`, `../a`). `decode_key` gives `key` back.
    """
    encoded = _UNSAFE.sub(_escaped, key)
    if posixpath.normpath(encoded) != encoded or encoded.startswith(("/", "..")):
        encoded = re.sub(r"[./]", _escaped, encoded)
    return encoded


def decode_key(key: str) -> str:
    """Returns the name that `encode_key` made `key` from."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), key)


def shorten(text: str, limit: int) -> str:
    """Returns `text` in at most `limit` characters.

    A longer one ends in a marker with its length and digest, so that two strings which differ only
    in their ends remain different.
    """
    if len(text) <= limit:
        return text
    marker = f" ... [{len(text)} characters, sha256 {_digest(text)}]"
    return text[: limit - len(marker)] + marker


def shorten_key(key: str) -> str:
    """Returns the encoded `key` in at most `MAX_KEY` characters, a digest ending a long one."""
    return key if len(key) <= MAX_KEY else f"{key[: MAX_KEY - 16]}... {_digest(key)}"


def clean(text: str) -> str:
    r"""Returns `text` with lone surrogates and NUL, which no store takes, written as `\x00`."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _escaped(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):04X}_"


def encode_tag(name: str, value: str) -> Tag:
    """Returns a tag as the store holds it, shortened where it is too long."""
    return Tag(shorten_key(encode_key(name)), shorten(clean(value), MAX_TAG_LENGTH))


class Encoder:
    """Turns the records of one run into entries.

    - Names are encoded by `encode_key`; one over 250 characters ends in a digest.
    - A parameter or tag whose value is too long ends in a marker with its length and digest.
    - A parameter that the run already has is not sent again. If it differs, the tag
      `runner.parameters_changed` names it, with both values.
    - NaN is a metric value like any other. Databases hold no infinity: MLflow stores 1.797e308 in
      its place.

    Args:
      parameters: encoded names and values of the parameters that the run already has.
      tags: the tags that the run already has; the tag of changed parameters is continued.
    """

    def __init__(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._parameters = dict(parameters)
        lines = tags.get(PARAMETERS_CHANGED_TAG, "").split("\n")
        # The lines of that tag, in order of appearance.
        self._changes = dict.fromkeys(filter(None, lines))

    def encode(self, records: Iterable[Record]) -> Iterator[Entry]:
        """Yields the entries of `records`, in their order."""
        for record in records:
            match record:
                case Metrics():
                    yield from self._metrics(record)
                case Parameters():
                    yield from self._new_parameters(record)
                case Tags():
                    yield from (encode_tag(*tag) for tag in record.values.items())
                case Text():
                    yield Text(clean(record.text), clean(record.file))
                case Artifact() | Dataset():
                    yield record

    def _metrics(self, record: Metrics) -> Iterator[Entry]:
        for name, value in record.values.items():
            key = shorten_key(encode_key(name))
            yield MetricPoint(key, value, record.time, record.step)

    def _new_parameters(self, record: Parameters) -> Iterator[Entry]:
        for name, raw in record.values.items():
            text = clean(raw)
            value = shorten(text, MAX_PARAMETER_LENGTH)
            key = shorten_key(encode_key(name))
            known = self._parameters.get(key)
            if known is None:
                self._parameters[key] = value
                yield Parameter(key, value)
            elif known != value:
                old = shorten(known, _MAX_CHANGED_VALUE)
                new = shorten(text, _MAX_CHANGED_VALUE)
                self._changes[f"{name}: {old} -> {new}".replace("\n", " ")] = None
                changes = shorten(clean("\n".join(self._changes)), MAX_TAG_LENGTH)
                yield Tag(PARAMETERS_CHANGED_TAG, changes)
