"""The values that the structured configs accept at a key."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.config import choices
from runner.config.choices import Goal
from runner.config.key_problems import rule_problems
from runner.config.keys import annotation, paths, unknown_keys
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig

ENUMS = [
    each
    for _, each in inspect.getmembers(choices, inspect.isclass)
    if issubclass(each, Enum) and each is not Enum
]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", RunConfig),
        ("train", TrainConfig),
        ("train.steps", int),
        ("train.goal", Goal | None),
        ("tracking.uri", str | None),
        ("model.units", Any),
        ("metrics.accuracy._target_", Any),
        ("scaffolds.cnn", ScaffoldConfig),
        ("scaffolds.0.trainable", bool),
        ("scaffolds.cnn.variables.include", list[str]),
        ("scaffolds.cnn.rename.a", str),
        ("trian", None),
        ("train.stepz", None),
        ("train.steps.more", None),
        ("scaffolds.cnn.chekpoint", None),
    ],
)
def test_annotation(key: str, expected: Any) -> None:
    assert annotation(key, RunConfig) == expected


def test_paths_reach_the_leaves() -> None:
    found = list(paths(RunConfig))
    assert {"train", "train.steps", "tracking.uri", "model"} <= set(found)
    assert all(annotation(path, RunConfig) is not None for path in found)


def test_unknown_keys_are_found_where_the_schema_is_closed() -> None:
    value = {
        "name": "x",
        "foo": 1,
        "train": {"steps": 3, "foo": 2},
        "model": {"anything": {"goes": 1}},
        "scaffolds": {"cnn": {"validated": "elsewhere"}},
    }
    assert unknown_keys(value, RunConfig) == ["foo", "train.foo"]


@pytest.mark.parametrize("kind", [RunConfig, ScaffoldConfig])
def test_every_default_passes_its_rule(kind: type) -> None:
    values: Any = OmegaConf.to_container(OmegaConf.structured(kind), enum_to_str=True)
    values.update({"name": "x"} if kind is RunConfig else {})
    assert rule_problems(values, kind) == []


@given(value=st.integers() | st.floats())
def test_bounds_accept_what_they_say(value: float) -> None:
    for key, inside in (
        ("steps", value >= 1),
        ("accumulate", value >= 1),
        ("ema_decay", 0 < value < 1),
    ):
        found = rule_problems({key: value}, TrainConfig, "train.")
        assert bool(found) != inside
        assert all(each.state.startswith(f"train.{key} is ") for each in found)


@pytest.mark.parametrize("enum", ENUMS)
def test_enums_are_spelt_as_they_are_typed(enum: type[Enum]) -> None:
    assert len(enum) >= 2
    assert [each.name for each in enum] == [each.value for each in enum]


def test_only_what_an_experiment_must_say_has_no_default() -> None:
    assert OmegaConf.missing_keys(OmegaConf.structured(RunConfig(name="x"))) == {
        "data",
        "model",
        "optimizer",
    }
