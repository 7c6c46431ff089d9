"""What is shown to be pasted can be pasted."""

from __future__ import annotations

import random
import shlex
from typing import Any

import pytest
import yaml as pyyaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.config.hydra_grammar import override, yaml


def pasted(text: str) -> Any:
    """What Hydra reads after a shell has taken the quotes away."""
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
def test_hydra_reads_an_override_as_it_was_meant(rules: dict[str, Any]) -> None:
    text = override("scaffolds.cnn.rename", rules)
    assert text is not None
    expected = {
        key: value if isinstance(value, str) else list(value) for key, value in rules.items()
    }
    assert pasted(text) == {"scaffolds.cnn.rename": expected}


@pytest.mark.parametrize("rules", [*RULES, {'"^~': "$x\\"}, {"ä'": r"\1'"}])
def test_yaml_reads_a_mapping_as_it_was_meant(rules: dict[str, Any]) -> None:
    expected = {
        key: value if isinstance(value, str) else list(value) for key, value in rules.items()
    }
    assert pyyaml.safe_load(yaml("rename", rules)) == {"rename": expected}


def test_a_word_needs_no_quotes() -> None:
    assert override("scaffolds.cnn.shape", "init") == "++scaffolds.cnn.shape=init"


@pytest.mark.parametrize("rules", [{"re:[^/]+": "x"}, {'a"b': "x"}, {"a": "${b}"}, {"ä": "x"}])
def test_what_hydra_cannot_read_is_not_shown(rules: dict[str, Any]) -> None:
    assert override("scaffolds.cnn.rename", rules) is None


def test_names_at_random() -> None:
    choose = random.Random(5)
    for _ in range(300):
        key, value = (
            "".join(choose.choices("ab1_/-.+ ()[]{}:=,*?|\\$%@'\"", k=choose.randrange(1, 9)))
            for _ in range(2)
        )
        rules = {key: value}
        assert pyyaml.safe_load(yaml("rename", rules)) == {"rename": rules}
        text = override("a.b", rules)
        if text is not None:
            assert pasted(text) == {"a.b": rules}
