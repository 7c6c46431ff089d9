"""Classes of state, what slots and averages belong to, and which scaffolds claim a variable."""

from __future__ import annotations

import pytest

from runner.config.choices import Collision, StateClass
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.errors import Problem
from runner.planning.problems import nearest_patterns
from runner.planning.variables import (
    EMA_SUFFIX,
    Ownership,
    assign_owners,
    classify,
    moving_average,
    owners_of,
)
from runner.rules.patterns import compile_pattern
from tests.support.plans import scaffold


@pytest.mark.parametrize(
    ("name", "model", "state"),
    [
        ("cnn/kernel", True, StateClass.weights),
        ("cnn/kernel/Adam", False, StateClass.optimizer_slots),
        ("beta1_power", False, StateClass.optimizer_slots),
        ("norm/moving_mean", True, StateClass.batch_norm),
        ("norm/moving_variance", True, StateClass.batch_norm),
        ("norm/moving_meaning", True, StateClass.weights),
        ("global_step", False, StateClass.global_step),
        ("drop/seed_generator_state", True, StateClass.random_state),
        ("cnn/kernel/ExponentialMovingAverage", False, StateClass.moving_averages),
        ("cnn/kernel/ExponentialMovingAverage_1", False, StateClass.moving_averages),
        ("ExponentialMovingAverage", True, StateClass.weights),
    ],
)
def test_classes_of_state(name: str, model: bool, state: StateClass) -> None:
    assert classify(name, model=model) is state


SLOT, AVERAGE = StateClass.optimizer_slots, StateClass.moving_averages


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("cnn/kernel/Adam", SLOT, "cnn/kernel"),
        ("cnn/kernel/Adam_1", SLOT, "cnn/kernel"),
        ("cnn/kernel/a/b", SLOT, "cnn/kernel"),
        ("cnn/Adam", SLOT, "cnn"),
        ("beta1_power", SLOT, None),
        ("other/kernel/Adam", SLOT, None),
        ("cnn/kernel/Adam", StateClass.weights, None),
        ("cnn/bias", SLOT, "cnn"),
        (f"cnn/norm/moving_mean{EMA_SUFFIX}", AVERAGE, "cnn/norm/moving_mean"),
        (f"cnn/kernel/Adam{EMA_SUFFIX}", AVERAGE, "cnn/kernel"),
    ],
)
def test_the_owner_is_the_longest_variable_name_above(
    name: str, state: StateClass, expected: str | None
) -> None:
    states = dict.fromkeys(("cnn/kernel", "cnn"), StateClass.weights)
    states |= {"cnn/kernel/Adam": SLOT, "cnn/norm/moving_mean": StateClass.batch_norm, name: state}
    assert owners_of(states).get(name) == expected


def test_averages_as_tensorflow_and_keras_name_them() -> None:
    tensors = ["a/k/ExponentialMovingAverage", "adam/net_a_k_average"]
    tensors += ["adam/net_body_dense_kernel_average", "one/x_bias_average", "two/y_bias_average"]
    expected = {
        "a/k": "a/k/ExponentialMovingAverage",
        "body/dense/kernel": "adam/net_body_dense_kernel_average",
        "net.body.dense.kernel": "adam/net_body_dense_kernel_average",
        "x/bias": "one/x_bias_average",
        "bias": None,  # Two might be meant.
        "other": None,
    }
    assert {name: moving_average(name, tensors) for name in expected} == expected


STATES = {
    "cnn/kernel": StateClass.weights,
    "cnn/moving_mean": StateClass.batch_norm,
    "cnn/kernel/Adam": StateClass.optimizer_slots,
    "cnn/kernel/Adam_1": StateClass.optimizer_slots,
    "cnn/kernel/ExponentialMovingAverage": StateClass.moving_averages,
    "head/kernel": StateClass.weights,
    "head/kernel/Adam": StateClass.optimizer_slots,
    "head/kernel/Adam_1": StateClass.optimizer_slots,
    "beta1_power": StateClass.optimizer_slots,
    "global_step": StateClass.global_step,
    "drop/seed_generator_state": StateClass.random_state,
}
ALL = [state for state in StateClass if state is not StateClass.random_state]


def owned(
    scaffolds: dict[str, ScaffoldConfig], collision: Collision = Collision.error
) -> Ownership:
    return assign_owners(STATES, scaffolds, collision)


def only(ownership: Ownership) -> Problem:
    (problem,) = ownership.problems
    return problem


WITH_SLOTS = [StateClass.weights, StateClass.optimizer_slots]
AVERAGES = [StateClass.moving_averages]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Weights and batch norm are the default.
        (scaffold("cnn/*"), {"cnn/kernel", "cnn/moving_mean"}),
        (scaffold("*"), {"cnn/kernel", "cnn/moving_mean", "head/kernel"}),
        (scaffold("cnn/*", state=[StateClass.batch_norm]), {"cnn/moving_mean"}),
        (scaffold(state=ALL), set(STATES) - {"drop/seed_generator_state"}),
        # Slots and averages go with their variable, unless a pattern names them.
        (
            scaffold("re:cnn/kernel", state=WITH_SLOTS),
            {"cnn/kernel", "cnn/kernel/Adam", "cnn/kernel/Adam_1"},
        ),
        (
            scaffold("*", exclude=["re:cnn/.*l", "*/Adam_1"], state=WITH_SLOTS),
            {"head/kernel", "head/kernel/Adam", "beta1_power"},
        ),
        (
            scaffold("*/Adam", state=[StateClass.optimizer_slots]),
            {"cnn/kernel/Adam", "head/kernel/Adam"},
        ),
        (scaffold("re:cnn/kernel", state=AVERAGES), {"cnn/kernel/ExponentialMovingAverage"}),
        # The global step needs no pattern.
        (
            scaffold("head/*", state=[StateClass.weights, StateClass.global_step]),
            {"head/kernel", "global_step"},
        ),
    ],
)
def test_what_a_scaffold_claims(config: ScaffoldConfig, expected: set[str]) -> None:
    ownership = owned({"net": config})
    assert not ownership.problems
    assert set(ownership.claims) == expected


NOTHING = "its patterns include none, or exclude all again, or the graph keeps no such state"
OWNS_NONE = " owns no variable of the class weights, batch_norm"


@pytest.mark.parametrize(
    ("config", "state", "cause", "choice"),
    [
        (
            scaffold(
                "head/*", exclude=["global_step"], state=[*WITH_SLOTS, StateClass.global_step]
            ),
            " owns no variable of the class global_step",
            NOTHING,
            "weights",
        ),
        (
            scaffold("cnn/*", "haed/*"),
            ".variables: 'haed/*' matches no variable of the model",
            "patterns match whole names",
            "head/*",
        ),
        (
            scaffold("head/*", exclude=["head/kernels"]),
            ".variables: 'head/kernels' matches no variable of the model",
            "patterns match whole names",
            "head/kernel",
        ),
        (
            scaffold("head/*", state=[StateClass.batch_norm]),
            " owns no variable of the class batch_norm",
            NOTHING,
            "weights",
        ),
        (ScaffoldConfig(VariablesConfig([])), OWNS_NONE, NOTHING, "moving_averages"),
        (scaffold("cnn/*", exclude=["*"]), OWNS_NONE, NOTHING, "moving_averages"),
        (scaffold("re:(cnn"), ".variables: not a pattern", "'re:(cnn' is not a regular", None),
    ],
)
def test_a_scaffold_that_does_not_claim_what_it_says(
    config: ScaffoldConfig, state: str, cause: str, choice: str | None
) -> None:
    problem = only(owned({"net": config, "head": scaffold("head/*")}, Collision.first))
    assert problem.state == f"scaffolds.net{state}"
    assert problem.cause.startswith(cause)
    assert next(iter(problem.choices), None) == choice


def test_a_collision_is_a_problem() -> None:
    scaffolds = {"a": scaffold("cnn/*"), "b": scaffold("*/kernel")}
    problem = only(owned(scaffolds))
    assert problem.state == "scaffolds a and b claim the same variables: cnn/kernel"
    assert problem.choices == ("restoration.collision=first", "restoration.collision=last")


def test_a_collision_of_three_is_one_problem() -> None:
    assert only(owned({name: scaffold("*") for name in "abc"})).state == (
        "scaffolds a and b and c claim the same variables: cnn/kernel, cnn/moving_mean, head/kernel"
    )


def test_disjoint_classes_do_not_collide() -> None:
    scaffolds = {
        "a": scaffold("cnn/*", state=[StateClass.weights]),
        "b": scaffold("cnn/*", state=[StateClass.batch_norm]),
    }
    ownership = owned(scaffolds)
    assert ownership.claims == {"cnn/kernel": "a", "cnn/moving_mean": "b"}
    assert not ownership.problems


NAMES = (
    *(f"cnn/{layer}/{weight}" for layer in ("conv1", "conv2") for weight in ("kernel", "bias")),
    *(f"block{block}_{layer}/kernel" for block in (1, 2) for layer in ("in", "out")),
    *("lstm/cell/kernel", "lstm/cell/recurrent_kernel", "head/kernel", "head/bias"),
)
NEAREST = {
    "haed/": ["head/"],
    "haed": ["head/"],
    "haed/*": ["head/*"],
    "Head/": ["head/"],
    "head": ["head/", "head/bias"],
    "heads/": ["head/", "head/bias"],
    "conv1/": ["cnn/conv1/"],
    "cell/*": ["lstm/cell/*"],
    "cnn/conv2": ["cnn/conv2/", "cnn/conv2/bias", "cnn/conv2/kernel"],
    "block1/": ["block1_*", "block1_in/", "block1_out/"],
    "block1_inn/": ["block1_in/", "block2_in/"],
    "head/kernels": ["head/kernel"],
    "encoder/": ["cnn/", "block1_in/", "block1_out/"],
}


@pytest.mark.parametrize("pattern", NEAREST)
def test_what_is_nearest_to_a_pattern_that_matches_nothing(pattern: str) -> None:
    choices = nearest_patterns(pattern, NAMES)
    assert list(choices)[: len(NEAREST[pattern])] == NEAREST[pattern]
    assert all(any(map(compile_pattern(choice).matches, NAMES)) for choice in choices)


def test_names_without_modules_are_near_a_pattern_too() -> None:
    assert nearest_patterns("x/", ["a", "b"]) == ("a", "b")
