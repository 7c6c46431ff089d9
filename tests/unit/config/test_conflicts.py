"""The table of settings that cannot be combined: its page, its keys, and what its rows refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.config import conditions, conflicts
from runner.config.conditions import Conflict, Setup, conflict_problems
from runner.config.keys import annotation, options, paths
from runner.config.schema import (
    ClusterConfig,
    ClusterMode,
    DevicesConfig,
    RunConfig,
    ScaffoldConfig,
)
from tests.support.configs import tiny

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "combinations.md"
CHECKED = (*conflicts.IN_A_CONFIGURATION, *conflicts.IN_A_CLUSTER, *conflicts.IN_A_SWEEP)
TARGET = {"_target_": "package.Name"}


def test_the_page_is_what_would_be_made_now() -> None:
    remedy = f"run: python -m runner.config.conflicts > {PAGE}"
    assert PAGE.read_text(encoding="utf-8") == conflicts.page(), remedy


def test_every_conflict_that_shows_in_the_model_is_on_the_page() -> None:
    rows = {name for name, row in vars(conflicts).items() if isinstance(row, Conflict)}
    assert {getattr(conflicts, name) for name in rows} == {*conflicts.IN_A_MODEL}


def conditions_of(conflict: Conflict) -> list[str]:
    whens = [one for each in conflict.when.split(" & ") for one in each.split(" or ")]
    return [*whens, *conflict.keys.split(", ")]


@pytest.mark.parametrize("conflict", CHECKED, ids=lambda each: f"{each.keys} {each.when}"[:60])
def test_every_condition_is_a_feature_or_a_key_and_one_of_its_values(conflict: Conflict) -> None:
    for condition in conditions_of(conflict):
        if condition in conditions._FEATURES:
            continue
        key, equals, value = condition.removeprefix("no ").partition("=")
        if key in ("model.jit_compile", "optimizer.use_ema"):  # Arguments of targets.
            continue
        assert key.replace(".NAME.", ".a.") in paths(RunConfig) or annotation(
            key.replace(".NAME.", ".a."), RunConfig
        )
        if equals and options(annotation(key, RunConfig)):
            assert value in options(annotation(key, RunConfig))


SERVERS = ClusterConfig(local=True, workers=2)
COLLECTIVE = ClusterConfig(local=True, workers=2, mode=ClusterMode.collective)


@pytest.mark.parametrize(
    ("changes", "cluster", "states"),
    [
        ({}, None, []),
        ({}, SERVERS, []),
        ({"devices": DevicesConfig(2)}, None, []),
        ({"devices": DevicesConfig(2)}, COLLECTIVE, []),
        ({"devices": DevicesConfig(2)}, SERVERS, ["devices is 2 beside parameter servers"]),
        ({"devices": DevicesConfig([1])}, SERVERS, []),
        ({"callbacks": {"stop": TARGET}}, SERVERS, ["callbacks is set beside parameter servers"]),
        ({"callbacks": {"stop": TARGET}}, COLLECTIVE, []),
        (
            {"model": {**TARGET, "jit_compile": True}, "devices": DevicesConfig("all")},
            COLLECTIVE,
            [
                "devices is all beside model.jit_compile",
                "model.jit_compile is true in a cluster",
            ],
        ),
        ({"model": {**TARGET, "jit_compile": False}}, COLLECTIVE, []),
        (
            {
                "graph": TARGET,
                "proof": "a.npz",
                "class_weight": {0: 2.0},
                "scaffolds": {"a.b": ScaffoldConfig(freeze_until_step=3)},
            },
            None,
            [
                "class_weight is set beside graph",
                "scaffolds.a.b.freeze_until_step is 3 beside graph",
                "proof is a.npz beside graph",
            ],
        ),
    ],
)
def test_a_row_refuses_what_is_set_where_it_holds(
    changes: dict[str, Any], cluster: ClusterConfig | None, states: list[str]
) -> None:
    empty: dict[str, Any] = (
        {"data": {}, "model": {}, "loss": {}, "optimizer": {}} if "graph" in changes else {}
    )
    config = tiny(**{**empty, "metrics": {}, **changes}, cluster=cluster or ClusterConfig())
    problems = conflict_problems(CHECKED, Setup(config, cluster))
    assert [problem.state for problem in problems] == states


def test_every_epoch_needs_a_length_where_it_cannot_be_counted() -> None:
    config = tiny(cluster=SERVERS)
    config.train.epochs = 2
    (problem,) = conflict_problems(conflicts.IN_A_CLUSTER, Setup(config, SERVERS))
    assert problem.state == (
        "train.epochs is 2 beside parameter servers, without train.steps_per_epoch"
    )
    config.train.steps_per_epoch = 5
    assert conflict_problems(conflicts.IN_A_CLUSTER, Setup(config, SERVERS)) == []
