"""What a scaffold's settings say together."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config import StateChoice
from runner.scaffold_validation import scaffold_problems, unset_vocabularies
from tests.tiny.plans import scaffold


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"which": "best"},
        {"which": "1200"},
        {"freeze_until_step": 10, "learning_rate_multiplier": 0.1},
        {"trainable": False},
        {"use_ema": True, "state": [StateChoice.weights]},
        {"transpose": {"a": [2, 3, 1, 0], "b": [0]}},
        {"rename": {"a/": "b/"}, "convert": {"*": "torch_dense"}},
    ],
)
def test_settings_that_go_together(changes: dict[str, Any]) -> None:
    assert scaffold_problems("net", scaffold(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"which": "lastest"}, "scaffolds.net.which is 'lastest'"),
        ({"which": "-1"}, "scaffolds.net.which is '-1'"),
        ({"freeze_until_step": -1}, "scaffolds.net.freeze_until_step is -1"),
        ({"learning_rate_multiplier": 0.0}, "scaffolds.net.learning_rate_multiplier is 0"),
        (
            {"learning_rate_multiplier": float("nan")},
            "scaffolds.net.learning_rate_multiplier is nan",
        ),
        (
            {"trainable": False, "freeze_until_step": 3, "learning_rate_multiplier": 2.0},
            "scaffolds.net is not trainable, but sets freeze_until_step and "
            "learning_rate_multiplier",
        ),
        ({"state": []}, "scaffolds.net.state is empty"),
        (
            {"use_ema": True, "state": [StateChoice.batch_norm]},
            "scaffolds.net.use_ema is true, but its state is without weights",
        ),
        ({"transpose": {"a": [1, 2]}}, "scaffolds.net.transpose: 'a' has the axes [1, 2]"),
        ({"transpose": {"a": []}}, "scaffolds.net.transpose: 'a' has the axes []"),
        ({"convert": {"a": [1]}}, "scaffolds.net.convert: the value of 'a' is [1]"),
        ({"rename": {"a": None}}, "scaffolds.net.rename: the value of 'a' is None"),
    ],
)
def test_settings_that_contradict(changes: dict[str, Any], state: str) -> None:
    (problem,) = scaffold_problems("net", scaffold(**changes))
    assert problem.state == state


def test_the_nearest_word_comes_first() -> None:
    (problem,) = scaffold_problems("net", scaffold(which="bset"))
    assert problem.choices == ("best",)


def test_a_vocabulary_needs_both_files() -> None:
    entry = {"vocabulary": {"a": {"old": "x", "new": "y"}, "b": {"new": "y"}, "c": "wrong type"}}
    (problem,) = unset_vocabularies("net", entry)
    assert problem.state == "scaffolds.net.vocabulary: 'b' has no `old` vocabulary"
    assert unset_vocabularies("net", {}) == unset_vocabularies("net", {"vocabulary": [1]}) == []
