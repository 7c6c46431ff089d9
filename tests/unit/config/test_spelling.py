"""Spelled values are read as they were meant: by Hydra's grammar, by YAML and by a shell."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml as pyyaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from runner.config.spelling import override, plain, spelled, yaml


def pasted(text: str) -> Any:
    """Returns the value that Hydra reads after a shell has taken the quotes away."""
    (word,) = shlex.split(text)
    parsed = OverridesParser.create().parse_override(word)
    assert word.startswith("++")
    return {parsed.key_or_group: parsed.value()}


RULES: list[dict[str, Any]] = [
    {"cnn/": "features/"},
    {"cnn/": ""},
    {"cnn/a": "x", "b/": "c d/e"},
    {r"re:(.*)/conv_(\d+)/kernel": r"\1/conv\2/w"},
    {r"re:a(.*?)\.b": r"\g<1>2/it's"},
    {"re:(.*)": "true"},
    {"a:b,c={d}[e]": "null"},
    {"head/kernel": (1, 0), "cnn/*": (2, 3, 1, 0)},
]


@pytest.mark.parametrize("rules", RULES)
def test_hydra_and_yaml_read_a_mapping_as_it_was_meant(rules: dict[str, Any]) -> None:
    expected = {
        key: value if isinstance(value, str) else list(value) for key, value in rules.items()
    }
    text = override("scaffolds.cnn.rename", rules)
    assert text is not None
    assert pasted(text) == {"scaffolds.cnn.rename": expected}
    assert pyyaml.safe_load(yaml("rename", rules)) == {"rename": expected}


@pytest.mark.parametrize("rules", [{"re:[^/]+": "x"}, {'a"b': "$x\\"}, {"a": "${b}"}, {"ä'": "x"}])
def test_what_hydra_cannot_read_is_shown_as_yaml_alone(rules: dict[str, Any]) -> None:
    assert override("scaffolds.cnn.rename", rules) is None
    assert pyyaml.safe_load(yaml("rename", rules)) == {"rename": rules}


NAMES = st.text("ab1_/-.+ ()[]{}:=,*?|\\$%@'\"", min_size=1, max_size=9)


@given(key=NAMES, value=NAMES)
def test_any_name_is_read_back_or_not_shown(key: str, value: str) -> None:
    rules = {key: value}
    assert pyyaml.safe_load(yaml("rename", rules)) == {"rename": rules}
    text = override("a.b", rules)
    assert text is None or pasted(text) == {"a.b": rules}


STRINGS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | STRINGS


@given(value=SCALARS | st.lists(SCALARS, max_size=4))
def test_any_value_is_read_back_with_its_type(value: Any) -> None:
    parsed = OverridesParser.create().parse_override(f"a={spelled(value)}").value()
    assert parsed == value
    assert type(parsed) is type(value)


@given(value=STRINGS)
def test_a_string_is_shown_without_the_quotes_it_can_do_without(value: str) -> None:
    shown = plain(spelled(value))
    assert shown in (value, spelled(value))


@pytest.mark.parametrize(
    ("value", "as_it_is"),
    [
        ("adam", "adam"),
        ("0.10", "0.10"),
        (r"experiment\:tiny", "experiment:tiny"),
        (r'"^$\w+$"', r"^$\w+$"),
        ("'a, b'", "a, b"),
        (r"'it\'s'", "it's"),
        ("'1'", "'1'"),
        ("'null'", "'null'"),
        ("'[a]'", "'[a]'"),
        ("''", "''"),
        ("['a',b]", "['a',b]"),
        ("'unfinished", "'unfinished"),
    ],
)
def test_a_value_is_as_it_is_unless_its_quotes_make_it_a_text(value: str, as_it_is: str) -> None:
    assert plain(value) == as_it_is
