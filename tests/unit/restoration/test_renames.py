"""From the model's names to a checkpoint's."""

from __future__ import annotations

import re

import pytest

from runner.restoration.patterns import Renames


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ({}, "cnn/kernel", "cnn/kernel"),
        ({"cnn/": "features/"}, "cnn/kernel", "features/kernel"),
        ({"cnn/": ""}, "cnn/kernel", "kernel"),
        ({"cnn/": "features/"}, "my/cnn/kernel", "my/cnn/kernel"),
        ({"cnn": "features"}, "cnn/kernel", "cnn/kernel"),
        ({"cnn/kernel": "w"}, "cnn/kernel", "w"),
        ({r"re:cnn/(.*)/(.*)": r"\2.\1"}, "cnn/a/b", "b.a"),
        ({r"re:(?P<rest>.*)_1": r"\g<rest>"}, "kernel_1", "kernel"),
        ({"re:cnn": "x"}, "cnn/kernel", "cnn/kernel"),
        ({"cnn/a": "x", "cnn/": "y/"}, "cnn/a", "x"),
        ({"cnn/": "y/", "cnn/a": "x"}, "cnn/a", "y/a"),
        ({"a/": "b/", "b/": "c/"}, "a/k", "b/k"),
    ],
)
def test_the_first_rule_that_matches_wins(rules: dict[str, str], name: str, expected: str) -> None:
    assert Renames(rules).apply(name) == expected


def test_rules_that_no_name_used_are_known() -> None:
    renames = Renames({"a/": "b/", "a/x": "y", "re:c.*": "d", "e": "f"})
    assert renames.apply("a/x") == "b/x"
    assert renames.find("g") is None
    assert renames.unused() == ("a/x", "re:c.*", "e")
    assert renames.exact("e") == "f"
    assert renames.exact("a/") is renames.exact("g") is None
    assert renames.unused() == ("a/x", "re:c.*")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("re:(", "x", "unterminated"),
        ("re:(.*)", r"\2", "invalid group reference 2"),
        ("re:(.*)", r"\g<name>", "unknown group name 'name'"),
        ("re:(?P<a>.*)", r"\g<b>", "unknown group name 'b'"),
        ("re:(.*)", "\\", "bad escape"),
    ],
)
def test_a_rule_that_does_not_compile_is_an_error_at_once(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(re.error, match=message) as caught:
        Renames({key: value})
    assert caught.value.pattern in (key.removeprefix("re:"), value)
