from __future__ import annotations

import posixpath
import random
import re

import pytest

from runner.tracking.encoding import MAX_KEY, clean, decode_key, encode_key, shorten, shorten_key


@pytest.mark.parametrize(
    "key", ["loss", "train/loss", "model.units.0", "a b", "top-1", "scope:0", "_x", "x_x0"]
)
def test_names_that_mlflow_accepts_stay_as_they_are(key: str) -> None:
    assert encode_key(key) == key


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        ("a@b", "a_x0040_b"),
        ("f(x)", "f_x0028_x_x0029_"),
        ("größe", "gr_x00F6__x00DF_e"),
        ("🎯", "_x1F3AF_"),
        ("", "_x_"),
        ("_x_", "_x005F_x_"),
        ("_x0040_", "_x005F_x0040_"),
        ("_x0041@", "_x005F_x0041_x0040_"),
        ("a//b", "a_x002F__x002F_b"),
        ("..", "_x002E__x002E_"),
        ("/a", "_x002F_a"),
        ("a/", "a_x002F_"),
    ],
)
def test_other_names_are_escaped_and_come_back(key: str, encoded: str) -> None:
    assert encode_key(key) == encoded
    assert decode_key(encoded) == key


def test_any_name_is_encoded_to_one_that_mlflow_accepts_and_comes_back() -> None:
    generator = random.Random(7)
    alphabet = "ab01FxX_x_x_004./ :-@%é🎯\n"
    keys = {"".join(generator.choices(alphabet, k=generator.randrange(12))) for _ in range(5000)}
    encoded = {encode_key(key) for key in keys}
    assert len(encoded) == len(keys)
    assert {decode_key(key) for key in encoded} == keys
    for key in encoded:
        assert re.fullmatch(r"[A-Za-z0-9_\-. :/]+", key), key
        assert posixpath.normpath(key) == key
        assert not key.startswith(("/", ".."))


def test_names_that_others_gave_are_decoded_without_error() -> None:
    assert decode_key("_xFFFFFF_") == "_xFFFFFF_"


def test_a_text_within_the_limit_is_not_shortened() -> None:
    assert shorten("a" * 100, 100) == "a" * 100


def test_a_shortened_text_says_so_and_still_differs_in_what_was_left_out() -> None:
    first, second = shorten("a" * 200 + "b", 100), shorten("a" * 200 + "c", 100)
    assert len(first) == len(second) == 100
    assert first != second
    assert re.fullmatch(r"a+ \.\.\. \[201 characters, sha256 [0-9a-f]{12}\]", first)


def test_long_names_keep_apart_within_the_limit() -> None:
    assert shorten_key("k" * MAX_KEY) == "k" * MAX_KEY
    first, second = shorten_key("k" * 300 + "1"), shorten_key("k" * 300 + "2")
    assert first != second
    assert len(first) == len(second) == MAX_KEY


def test_characters_that_no_database_takes_are_spelt_out() -> None:
    assert clean("a\x00b\ud800c") == "a\\x00b\\ud800c"
    assert clean("größe 🎯") == "größe 🎯"
