"""The nearest names, also among very many."""

from __future__ import annotations

import random
import time
from functools import cache

import pytest

from runner.restoration.suggestions import NearestNames, edit_distance, nearest_names


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("", "abc", 3),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("aaa", "aa", 1),
        ("abab", "ab", 2),
    ],
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == distance


def test_edit_distance_is_what_its_definition_says() -> None:
    @cache
    def defined(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        return min(
            defined(one[1:], other) + 1,
            defined(one, other[1:]) + 1,
            defined(one[1:], other[1:]) + (one[0] != other[0]),
        )

    letters = random.Random(3)
    for _ in range(300):
        one, other = ("".join(letters.choices("ab/", k=letters.randrange(8))) for _ in range(2))
        assert edit_distance(one, other) == defined(one, other)


def test_the_nearest_come_first() -> None:
    names = ["conv1/kernel", "conv2/kernel", "conv1/bias", "dense/kernel"]
    assert nearest_names("conv1/kernal", names) == ("conv1/kernel", "conv2/kernel", "conv1/bias")
    assert nearest_names("x", names, count=2) == ("conv1/bias", "conv1/kernel")
    assert nearest_names("x", []) == ()


def test_among_many_names_a_shared_or_a_misspelt_part_decides() -> None:
    names = [f"body/layer_{number}/{leaf}" for number in range(500) for leaf in ("kernel", "bias")]
    names += ["head/kernel", "classifier/norm/gamma"]
    nearest = NearestNames(names)
    assert nearest.find("layer_77/kernel")[0] == "body/layer_77/kernel"
    assert nearest.find("clasifier/norm/gama")[0] == "classifier/norm/gamma"
    assert nearest.find("haed/kernel")[0] == "head/kernel"
    assert len(nearest.find("???")) == 3


def test_many_questions_among_very_many_names_are_fast() -> None:
    nearest = NearestNames(f"body/layer_{number}/kernel" for number in range(50_000))
    start = time.process_time()
    for number in range(24):
        assert nearest.find(f"body/layr_{number}/kernel")[0] == f"body/layer_{number}/kernel"
    assert time.process_time() - start < 5  # Some 0.5 s; comparing with every name, minutes.
