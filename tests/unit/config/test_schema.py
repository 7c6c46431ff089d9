"""What the structured configs allow at a key."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config import lookup
from runner.config.choices import Goal
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", RunConfig),
        ("train", TrainConfig),
        ("train.steps", int),
        ("train.goal", Goal),
        ("tracking.uri", str | None),
        ("model.units", Any),
        ("metrics.accuracy._target_", Any),
        ("scaffolds.cnn", ScaffoldConfig),
        ("scaffolds.0.trainable", bool),
        ("scaffolds.cnn.variables.include", list[str]),
        ("scaffolds.cnn.rename.a", Any),
        ("trian", None),
        ("train.stepz", None),
        ("train.steps.more", None),
        ("scaffolds.cnn.chekpoint", None),
    ],
)
def test_annotation(key: str, expected: Any) -> None:
    assert lookup.annotation(key) == expected


def test_keys() -> None:
    assert lookup.keys(TrainConfig)[:2] == ("steps", "log_every")
    assert lookup.keys(int) == lookup.keys(Any) == ()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Goal, ("maximize", "minimize")), (bool, ("true", "false")), (int, ()), (str | None, ())],
)
def test_choices(kind: Any, expected: tuple[str, ...]) -> None:
    assert lookup.choices(kind) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (str | None, "a text or null"),
        (list[str], "a list"),
        (dict[str, Any], "a mapping"),
        (Goal, "maximize or minimize"),
        (Any, "another value"),
    ],
)
def test_words(kind: Any, expected: str) -> None:
    assert lookup.words(kind) == expected


def test_words_of_a_section_name_its_keys() -> None:
    assert lookup.words(TrainConfig).startswith("a mapping with the keys steps, log_every, ")


def test_paths_reach_the_leaves() -> None:
    paths = list(lookup.paths())
    assert {"train", "train.steps", "tracking.uri", "model"} <= set(paths)
    assert all(lookup.annotation(path) is not None for path in paths)


def test_unknown_keys_are_found_where_the_schema_is_closed() -> None:
    value = {
        "name": "x",
        "foo": 1,
        "train": {"steps": 3, "foo": 2},
        "model": {"anything": {"goes": 1}},
        "scaffolds": {"cnn": {"validated": "elsewhere"}},
    }
    assert lookup.unknown_keys(value) == ["foo", "train.foo"]
