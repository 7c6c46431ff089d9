"""Patterns and renames over whole names."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rules.patterns import FirstMatch, Renames, compile_pattern, select

NAMES = ("cnn/conv1/kernel", "cnn/conv1/bias", "cnn/conv10/kernel", "head/kernel")


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("cnn/*", NAMES[:3]),
        ("cnn/conv?/kernel", NAMES[:1]),
        ("*/[b]ias", NAMES[1:2]),
        ("conv1", ()),
        (r"re:cnn/conv\d+/kernel", (NAMES[0], NAMES[2])),
        ("re:kernel", ()),
        ("re:.*kernel", (NAMES[0], NAMES[2], NAMES[3])),
        ("head.kernel", ()),
        ("CNN/*", ()),
        ("cnn/conv[!1]*/kernel", ()),
        ("cnn/conv[0-9]/kernel", NAMES[:1]),
        ("cnn/conv{n}/kernel", (NAMES[0], NAMES[2])),
        ("cnn/", NAMES[:3]),
    ],
)
def test_a_pattern_matches_the_whole_name(pattern: str, matches: tuple[str, ...]) -> None:
    compiled = compile_pattern(pattern)
    assert tuple(name for name in NAMES if compiled.matches(name)) == matches


def test_what_is_excluded_is_not_selected() -> None:
    selection = select(NAMES, ["cnn/*", "nothing/*"], ["*/bias", "never"])
    assert selection.selected == {NAMES[0], NAMES[2]}
    assert selection.excluded == {NAMES[1]}
    assert selection.unused == ("nothing/*", "never")
    assert select(NAMES, [], []).selected == frozenset()


def test_the_first_of_several_patterns_wins() -> None:
    patterns = FirstMatch({"head/*": 1, "*/kernel": 2, "cnn/*": 3})
    assert [patterns.find(name) for name in NAMES] == [2, 3, 2, 1]
    assert patterns.find("other") is None
    assert patterns.unused() == ()
    with pytest.raises(ValueError, match="unterminated"):
        FirstMatch({"re:(": 1})


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ({}, "cnn/kernel", "cnn/kernel"),
        ({"cnn/": ""}, "cnn/kernel", "kernel"),
        ({r"re:cnn/(.*)/(.*)": r"\2.\1"}, "cnn/a/b", "b.a"),
        ({r"re:(?P<rest>.*)_1": r"\g<rest>"}, "kernel_1", "kernel"),
        ({"re:cnn": "x"}, "cnn/kernel", "cnn/kernel"),
        ({"a/": "b/", "b/": "c/"}, "a/k", "b/k"),
        ({"block_{n}/": "features.{n+1}/"}, "block_2/k", "features.3/k"),
        ({r"re:(a)/.*": r"\g<1>"}, "a/k", "a"),
    ],
)
def test_what_a_rule_makes_of_a_name(rules: dict[str, str], name: str, expected: str) -> None:
    assert Renames(rules).apply(name) == expected


def test_rules_that_no_name_used_are_known() -> None:
    renames = Renames({"a/": "b/", "a/x": "y", "re:c.*": "d", "e": "f"})
    assert renames.apply("a/x") == "b/x"
    assert renames.find("g") is None
    assert renames.unused() == ("a/x", "re:c.*", "e")
    assert renames.exact("e") == "f"
    assert renames.exact("g") is None
    assert renames.unused() == ("a/x", "re:c.*")


def test_the_order_of_rules_decides_between_whole_names_and_patterns() -> None:
    patterns = FirstMatch({"a": 1, "[ab]": 2, "b": 3, "c": 4})
    assert [patterns.find(*names) for names in ("a", "b", "cb", "ca", "cd")] == [1, 2, 2, 1, 4]
    assert patterns.unused() == ("b",)
    assert patterns.find("[ab]") is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("re:(", "x", "unterminated"),
        ("re:(.*)", r"\2", "names no part of the pattern: 2"),
        ("re:(.*)", r"\g<name>", "names no part of the pattern: name"),
        ("re:(?P<a>.*)", r"\g<b>", "names no part of the pattern: b"),
        ("[b-a]", "x", "bad character range"),
    ],
)
def test_a_rule_that_does_not_compile_is_an_error_at_once(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Renames({key: value})


TEXTS = st.text("ab/_.1", max_size=8)


@given(TEXTS, st.text("ab/*?", max_size=6))
def test_a_glob_is_that_of_a_shell_but_for_slashes(name: str, pattern: str) -> None:
    shells = f"{pattern}*" if pattern.endswith("/") else pattern
    assert compile_pattern(pattern).matches(name) == fnmatch.fnmatchcase(name, shells)


@given(st.lists(TEXTS, max_size=5), st.dictionaries(TEXTS, TEXTS, max_size=4))
def test_the_first_rule_that_matches_is_used(names: list[str], rules: dict[str, str]) -> None:
    renames = Renames(rules)
    used: set[str] = set()
    for name in names:
        matches = [
            (key, value + name.removeprefix(key))
            for key, value in rules.items()
            if name == key or (key.endswith("/") and name.startswith(key))
        ]
        assert renames.find(name) == (matches[0][1] if matches else None)
        used.update(key for key, _ in matches[:1])
    assert set(renames.unused()) == set(rules) - used
