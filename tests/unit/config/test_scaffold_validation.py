"""What a scaffold's settings say together."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from runner.config.scaffold_rules import scaffold_problems, unset_vocabularies, untracked_sources

from runner.config.choices import ShapePolicy, StateChoice
from runner.config.schema import RunConfig, ScaffoldConfig, VocabularyConfig
from runner.config.validation import validate
from runner.errors import ConfigError
from tests.tiny.plans import scaffold


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"which": "best"},
        {"which": "1200"},
        {"average": "last 3", "which": "latest"},
        {"average": ["best", 100, "a/b.npz"]},
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
        ({"average": 5}, "scaffolds.net.average is 5"),
        ({"average": [100, 1.5]}, "scaffolds.net.average is [100, 1.5]"),
        ({"checkpoint": " "}, "scaffolds.net.checkpoint is empty"),
        ({"average": []}, "scaffolds.net.average is []"),
        ({"average": "last 0"}, "scaffolds.net.average is 'last 0'"),
        ({"average": "first 3"}, "scaffolds.net.average is 'first 3'"),
        ({"average": [True]}, "scaffolds.net.average is [True]"),
        (
            {"average": "last 2", "which": "best"},
            "scaffolds.net asks for which=best and for an average",
        ),
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


def test_what_is_in_mlflow_needs_a_store() -> None:
    entry = scaffold(checkpoint="models:/net@best", average=["runs:/1/best", 3, "a.npz"])
    assert [each.state for each in untracked_sources("net", entry)] == [
        "scaffolds.net.checkpoint: models:/net@best is in MLflow, and tracking is off",
        "scaffolds.net.average: runs:/1/best is in MLflow, and tracking is off",
    ]
    assert untracked_sources("net", scaffold(checkpoint=None)) == []
    given = {"checkpoint": "runs:/1/best"}
    with pytest.raises(ConfigError, match="runs:/1/best is in MLflow, and tracking is off"):
        validate(composed(given, uri=None))
    assert validate(composed(given, uri="sqlite:///x.db")).scaffolds["net"].checkpoint


def test_the_nearest_word_comes_first() -> None:
    (problem,) = scaffold_problems("net", scaffold(which="bset"))
    assert problem.choices == ("best",)


def test_a_vocabulary_needs_both_files() -> None:
    entry = {"vocabulary": {"a": {"old": "x", "new": "y"}, "b": {"new": "y"}, "c": "wrong type"}}
    (problem,) = unset_vocabularies("net", entry)
    assert problem.state == "scaffolds.net.vocabulary: 'b' has no `old` vocabulary"
    assert unset_vocabularies("net", {}) == unset_vocabularies("net", {"vocabulary": [1]}) == []


def composed(entry: dict[str, Any], uri: str | None = None) -> DictConfig:
    target = {"_target_": "a.b"}
    values: dict[Any, Any] = dict.fromkeys(("data", "model", "loss", "optimizer"), target)
    entry = {"variables": {"include": ["*"]}, **entry}
    config = OmegaConf.merge(
        OmegaConf.structured(RunConfig),
        {"name": "x", **values, "tracking": {"uri": uri}, "scaffolds": {"net": entry}},
    )
    assert isinstance(config, DictConfig)
    return config


def test_every_setting_reaches_the_typed_configuration() -> None:
    entry = {
        "which": "latest",
        "average": "last 5",
        "state": ["weights", "optimizer_slots"],
        "use_ema": True,
        "shape": "pad_or_slice",
        "transpose": {"head.*/kernel": [1, 0]},
        "vocabulary": {"emb.x": {"old": "a", "new": "b", "axis": -1}},
        "convert": {"re:lstm/.*": "tf1_lstm"},
        "cast": True,
        "finite": True,
        "freeze_until_step": 5,
        "learning_rate_multiplier": 0.1,
    }
    typed: ScaffoldConfig = validate(composed(entry)).scaffolds["net"]
    assert (typed.which, typed.average) == ("latest", "last 5")
    assert typed.state == [StateChoice.weights, StateChoice.optimizer_slots]
    assert typed.shape is ShapePolicy.pad_or_slice
    assert typed.transpose == {"head.*/kernel": [1, 0]}
    assert typed.vocabulary == {"emb.x": VocabularyConfig("a", "b", -1)}
    assert typed.convert == {"re:lstm/.*": "tf1_lstm"}
    assert (typed.use_ema, typed.cast, typed.finite) == (True, True, True)
    assert (typed.freeze_until_step, typed.learning_rate_multiplier) == (5, 0.1)


def test_problems_reach_the_user() -> None:
    entry = {"which": "lastest", "vocabulary": {"a": {"old": "x"}}}
    with pytest.raises(ConfigError, match="'a' has no `new` vocabulary"):
        validate(composed(entry))
    with pytest.raises(ConfigError, match=r"scaffolds\.net\.which is 'lastest'"):
        validate(composed({"which": "lastest"}))
