from __future__ import annotations

import math
import posixpath
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.tracking.encoding import (
    MAX_KEY,
    Encoder,
    Entry,
    MetricPoint,
    Parameter,
    Tag,
    batches,
    clean,
    decode_key,
    description,
    encode_key,
    shorten,
    shorten_key,
)
from runner.tracking.journal import Artifact, Dataset, Parameters, Record, Text

# Names


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        *((name, name) for name in ("train/loss", "model.units.0", "a b", "top-1", "s:0", "_x_x0")),
        ("a@b", "a_x0040_b"),
        ("f(x)", "f_x0028_x_x0029_"),
        ("größe", "gr_x00F6__x00DF_e"),
        ("🎯", "_x1F3AF_"),
        ("_x0040_", "_x005F_x0040_"),
        ("_x0041@", "_x005F_x0041_x0040_"),
        ("a//b", "a_x002F__x002F_b"),
        ("..", "_x002E__x002E_"),
        ("/a", "_x002F_a"),
        ("a/", "a_x002F_"),
    ],
)
def test_the_names_on_disk_do_not_change(key: str, encoded: str) -> None:
    assert encode_key(key) == encoded
    assert decode_key(encoded) == key


_names = st.one_of(st.text(min_size=1), st.text("ab01FxX_x_004./ :-@%é🎯\n", min_size=1))


@given(_names)
def test_any_name_is_encoded_to_one_that_mlflow_accepts_and_decoded_again(key: str) -> None:
    encoded = encode_key(key)
    assert re.fullmatch(r"[A-Za-z0-9_\-. :/]+", encoded)
    assert posixpath.normpath(encoded) == encoded
    assert not encoded.startswith(("/", ".."))
    assert decode_key(encoded) == key


def test_names_that_others_gave_are_decoded_without_error() -> None:
    assert decode_key("_xFFFFFF_") == "_xFFFFFF_"


@given(st.text(), st.text(), st.integers(60, 200))
def test_shortened_strings_fit_and_differ_where_the_whole_ones_do(
    one: str, other: str, limit: int
) -> None:
    one, other = "a" * 150 + one, "a" * 150 + other
    assert f"... [{len(one)} characters, sha256 " in shorten(one, min(limit, 149))
    assert max(len(shorten(one, limit)), len(shorten(other, limit))) <= limit
    assert (shorten(one, limit) == shorten(other, limit)) == (one == other)
    keys = shorten_key(one * 2), shorten_key(other * 2)
    assert max(map(len, keys)) <= MAX_KEY
    assert (keys[0] == keys[1]) == (one == other)


def test_characters_that_no_database_takes_are_spelt_out() -> None:
    assert clean("a\x00b\ud800c") == "a\\x00b\\ud800c"
    assert clean("größe 🎯") == "größe 🎯"
    assert encode(Text("a\x00", "b.txt")) == [Text("a\\x00", "b.txt")]


# Records


def encode(*records: Record, encoder: Encoder | None = None) -> list[Entry]:
    return list((encoder or Encoder({}, {})).encode(records))


def test_long_values_that_changed_past_the_limit_are_seen_to_differ() -> None:
    encoder = Encoder({}, {})
    encode(Parameters({"a": "v" * 7000 + "1"}), encoder=encoder)
    (note,) = encode(Parameters({"a": "v" * 7000 + "2"}), encoder=encoder)
    assert isinstance(note, Tag)
    assert note.key == "runner.parameters_changed"
    assert len(note.value) < 500


def test_a_note_keeps_within_the_limit_of_a_tag() -> None:
    encoder = Encoder({f"p{index}": "1" for index in range(2000)}, {})
    changed = Parameters({f"p{index}": "2" for index in range(2000)})
    notes = [entry for entry in encode(changed, encoder=encoder) if isinstance(entry, Tag)]
    assert max(len(note.value) for note in notes) == 8000


# Batches

POINT, PARAMETER, TAG = MetricPoint("loss", 0.5, 0, 1), Parameter("a", "1"), Tag("t", "1")
ARTIFACT = Artifact(Path("run/plan.txt"))


@given(
    st.lists(
        st.tuples(st.sampled_from([POINT, PARAMETER, TAG, ARTIFACT]), st.integers(1, 1200)),
        max_size=6,
    )
)
def test_batches_keep_the_order_and_every_limit_and_lose_nothing(
    runs: list[tuple[Entry, int]],
) -> None:
    entries = [entry for entry, count in runs for _ in range(count)]
    found: list[Entry] = []
    for delivery in batches(entries):
        kinds = [type(each) for each in delivery]
        assert 0 < len(kinds) <= (1 if Artifact in kinds else 1000)
        assert kinds.count(Parameter) <= 100
        assert kinds.count(Tag) <= 100
        found += delivery
    assert found == entries
    # As few as the limits allow, where one kind stands alone.
    if len(runs) == 1:
        kind, count = type(runs[0][0]), runs[0][1]
        limit = {MetricPoint: 1000, Artifact: 1}.get(kind, 100)
        assert len(list(batches(entries))) == math.ceil(count / limit)


def test_a_description_names_each_entry_once() -> None:
    text, dataset = Text("text", "reports/plan.txt"), Dataset("digits", "abc")
    assert description((POINT, POINT, PARAMETER, TAG, dataset, ARTIFACT, text)) == (
        "metric value 'loss', parameter 'a', tag 't', data set digits, artifact plan.txt,"
        " artifact reports/plan.txt"
    )
    assert description(()) == ""
