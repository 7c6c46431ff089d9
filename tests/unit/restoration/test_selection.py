"""Patterns match whole names, and nothing that matches nothing goes unnoticed."""

from __future__ import annotations

import re

import pytest

from runner.restoration.selection import compile_pattern, rename, select

NAMES = ("cnn/conv1/kernel", "cnn/conv1/bias", "cnn/conv2/kernel", "head/kernel", "cnn")


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("cnn/*", ["cnn/conv1/kernel", "cnn/conv1/bias", "cnn/conv2/kernel"]),
        ("cnn", ["cnn"]),
        ("*/kernel", ["cnn/conv1/kernel", "cnn/conv2/kernel", "head/kernel"]),
        ("cnn/conv?/bias", ["cnn/conv1/bias"]),
        ("cnn/conv[!1]/*", ["cnn/conv2/kernel"]),
        ("*", list(NAMES)),
        ("CNN/*", []),
        ("conv1", []),
        ("re:cnn/conv[12]/kernel", ["cnn/conv1/kernel", "cnn/conv2/kernel"]),
        ("re:kernel", []),
        ("re:cnn", ["cnn"]),
        ("re:.*kernel", ["cnn/conv1/kernel", "cnn/conv2/kernel", "head/kernel"]),
        ("head.kernel", []),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matched: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in NAMES if compiled.fullmatch(name)] == matched
    assert list(select(NAMES, [pattern], []).names) == matched


def test_what_is_excluded_is_not_selected() -> None:
    selected = select(NAMES, ["cnn/*", "head/*"], ["*/bias", "re:head/.*"])
    assert selected.names == ("cnn/conv1/kernel", "cnn/conv2/kernel")
    assert selected.unused == ()


def test_names_keep_their_order_and_come_once() -> None:
    assert select(NAMES, ["head/*", "cnn/*", "*/kernel"], []).names == NAMES[:4]


def test_patterns_that_match_nothing_are_reported() -> None:
    selected = select(NAMES, ["cnn/*", "lstm/*"], ["*/gamma"])
    assert selected.unused == ("lstm/*", "*/gamma")
    assert len(selected.names) == 3


def test_an_exclusion_counts_as_used_wherever_it_matches() -> None:
    assert select(NAMES, ["cnn/*"], ["head/*"]).unused == ()


def test_nothing_included_selects_nothing() -> None:
    assert select(NAMES, [], []).names == ()


@pytest.mark.parametrize("place", ["include", "exclude"])
def test_an_expression_that_is_not_valid(place: str) -> None:
    patterns: dict[str, list[str]] = {"include": ["*"], "exclude": [], place: ["re:cnn/("]}
    with pytest.raises(re.error, match="missing \\), unterminated subpattern"):
        select(NAMES, patterns["include"], patterns["exclude"])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "cnn/conv1/kernel"),
        ({"cnn/conv1/kernel": "w"}, "w"),
        ({"cnn/": "features/"}, "features/conv1/kernel"),
        ({"cnn/": ""}, "conv1/kernel"),
        ({"cnn": "features"}, "cnn/conv1/kernel"),
        ({"conv1/": "x/"}, "cnn/conv1/kernel"),
        ({r"re:(.*)/conv(\d)/(.*)": r"\1/c\2/\3"}, "cnn/c1/kernel"),
        ({r"re:cnn/(?P<rest>.*)": r"\g<rest>"}, "conv1/kernel"),
        ({"re:conv1": "x"}, "cnn/conv1/kernel"),
        ({"cnn/conv1/": "first/", "cnn/": "second/"}, "first/kernel"),
        ({"cnn/": "second/", "cnn/conv1/": "first/"}, "second/conv1/kernel"),
    ],
)
def test_rename(rules: dict[str, str], expected: str) -> None:
    assert rename(["cnn/conv1/kernel"], rules).names == {"cnn/conv1/kernel": expected}


def test_every_name_is_in_the_outcome() -> None:
    renamed = rename(NAMES, {"cnn/": "features/"})
    assert list(renamed.names) == list(NAMES)
    assert renamed.names["head/kernel"] == "head/kernel"
    assert renamed.unused == ()


def test_rules_that_no_name_used_are_reported() -> None:
    rules = {"cnn/": "a/", "cnn/conv1/": "b/", "lstm/": "c/", "re:x.*": "d"}
    assert rename(NAMES, rules).unused == ("cnn/conv1/", "lstm/", "re:x.*")


def test_an_expression_that_is_not_valid_as_a_rule() -> None:
    with pytest.raises(re.error, match="unterminated character set"):
        rename(NAMES, {"re:[": "x"})


@pytest.mark.parametrize("template", [r"\2", r"\g<nosuch>", "\\"])
def test_a_replacement_that_is_not_valid(template: str) -> None:
    with pytest.raises(re.error, match=r"group|escape") as error:
        rename(NAMES, {"re:(cnn)": template})
    assert error.value.pattern == template
