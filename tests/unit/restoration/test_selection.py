"""Patterns match whole names."""

from __future__ import annotations

import re

import pytest

from runner.restoration.patterns import FirstMatch, compile_pattern, select

NAMES = ("cnn/conv1/kernel", "cnn/conv1/bias", "cnn/conv10/kernel", "head/kernel")


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("cnn/*", NAMES[:3]),
        ("cnn/conv?/kernel", NAMES[:1]),
        ("*/[b]ias", NAMES[1:2]),
        ("conv1", ()),
        ("cnn", ()),
        ("head/kernel", NAMES[3:]),
        (r"re:cnn/conv\d+/kernel", (NAMES[0], NAMES[2])),
        ("re:kernel", ()),
        ("re:.*kernel", (NAMES[0], NAMES[2], NAMES[3])),
        ("head.kernel", ()),
        ("CNN/*", ()),
        ("cnn/conv[!1]*/kernel", ()),
        ("*", NAMES),
        ("re:cnn", ()),
    ],
)
def test_a_pattern_matches_the_whole_name(pattern: str, matches: tuple[str, ...]) -> None:
    compiled = compile_pattern(pattern)
    assert tuple(name for name in NAMES if compiled.fullmatch(name)) == matches


def test_what_is_excluded_is_not_selected() -> None:
    found = select(NAMES, ["cnn/*", "nothing/*"], ["*/bias", "never"])
    assert found.selected == {NAMES[0], NAMES[2]}
    assert found.excluded == {NAMES[1]}
    assert found.unused == ("nothing/*", "never")


def test_nothing_is_selected_by_no_pattern() -> None:
    found = select(NAMES, [], [])
    assert (found.selected, found.excluded, found.unused) == (frozenset(), frozenset(), ())


def test_a_bad_expression_is_an_error() -> None:
    with pytest.raises(re.error, match="unterminated"):
        select(NAMES, ["re:("], [])


def test_the_first_of_several_patterns_wins() -> None:
    patterns = FirstMatch(["head/*", "*/kernel", "cnn/*"])
    assert [patterns.find(name) for name in NAMES] == ["*/kernel", "cnn/*", "*/kernel", "head/*"]
    assert patterns.find("other") is None
    assert patterns.unused() == ()
    fresh = FirstMatch(["a", "b"])
    fresh.find("b")
    assert fresh.unused() == ("a",)
    with pytest.raises(re.error, match="unterminated"):
        FirstMatch(["re:("])
