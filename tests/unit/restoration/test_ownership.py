"""Which scaffolds claim a variable."""

from __future__ import annotations

import pytest

from runner.config.choices import Collision, StateChoice
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.errors import Problem
from runner.restoration.ownership import Ownership, assign_owners
from runner.restoration.problems import some
from runner.restoration.variables import StateClass
from tests.tiny.plans import scaffold

STATES = {
    "cnn/kernel": StateClass.WEIGHT,
    "cnn/moving_mean": StateClass.BATCH_NORM,
    "cnn/kernel/Adam": StateClass.OPTIMIZER_SLOT,
    "cnn/kernel/Adam_1": StateClass.OPTIMIZER_SLOT,
    "cnn/kernel/ExponentialMovingAverage": StateClass.MOVING_AVERAGE,
    "head/kernel": StateClass.WEIGHT,
    "head/kernel/Adam": StateClass.OPTIMIZER_SLOT,
    "head/kernel/Adam_1": StateClass.OPTIMIZER_SLOT,
    "beta1_power": StateClass.OPTIMIZER_SLOT,
    "global_step": StateClass.GLOBAL_STEP,
    "drop/seed_generator_state": StateClass.RANDOM_STATE,
}
ALL = list(StateChoice)


def owned(
    scaffolds: dict[str, ScaffoldConfig], collision: Collision = Collision.error
) -> Ownership:
    return assign_owners(STATES, scaffolds, collision)


def claimed(config: ScaffoldConfig) -> set[str]:
    ownership = owned({"net": config})
    assert not ownership.problems
    return set(ownership.claims)


def only(ownership: Ownership) -> Problem:
    (problem,) = ownership.problems
    return problem


def test_weights_and_batch_norm_are_the_default() -> None:
    assert claimed(scaffold("cnn/*")) == {"cnn/kernel", "cnn/moving_mean"}
    assert claimed(scaffold("*")) == {"cnn/kernel", "cnn/moving_mean", "head/kernel"}


def test_classes_are_chosen() -> None:
    assert claimed(scaffold("cnn/*", state=[StateChoice.batch_norm])) == {"cnn/moving_mean"}
    assert claimed(scaffold(state=ALL)) == set(STATES) - {"drop/seed_generator_state"}


def test_slots_go_with_their_variable() -> None:
    choices = [StateChoice.weights, StateChoice.optimizer_slots]
    assert claimed(scaffold("re:cnn/kernel", state=choices)) == {
        "cnn/kernel",
        "cnn/kernel/Adam",
        "cnn/kernel/Adam_1",
    }
    without = scaffold("*", exclude=["re:cnn/.*l", "*/Adam_1"], state=choices)
    assert claimed(without) == {"head/kernel", "head/kernel/Adam", "beta1_power"}
    alone = scaffold("*/Adam", state=[StateChoice.optimizer_slots])
    assert claimed(alone) == {"cnn/kernel/Adam", "head/kernel/Adam"}


def test_averages_go_with_their_variable() -> None:
    choices = [StateChoice.moving_averages]
    assert claimed(scaffold("re:cnn/kernel", state=choices)) == {
        "cnn/kernel/ExponentialMovingAverage"
    }


def test_the_global_step_needs_no_pattern_but_may_be_excluded() -> None:
    choices = [StateChoice.weights, StateChoice.global_step]
    assert claimed(scaffold("head/*", state=choices)) == {"head/kernel", "global_step"}
    problem = only(owned({"net": scaffold("head/*", exclude=["global_step"], state=choices)}))
    assert problem.state == (
        "scaffolds.net.state: no selected variable is of the class global_step"
    )
    assert problem.choices == ("weights",)


def test_a_pattern_that_matches_nothing_is_a_problem() -> None:
    problem = only(owned({"net": scaffold("cnn/*", "haed/*")}))
    assert problem.state == ("scaffolds.net.variables: 'haed/*' matches no variable of the model")
    assert problem.remedy == "fix the pattern, or delete the scaffold: ~scaffolds.net"
    assert problem.choices[0] == "head/*"


def test_patterns_that_match_other_classes_only_are_a_problem() -> None:
    problem = only(owned({"net": scaffold("head/*", state=[StateChoice.batch_norm])}))
    assert problem.state == "scaffolds.net owns no variable"
    assert "other classes than batch_norm" in problem.cause


@pytest.mark.parametrize("patterns", [((), ()), (("cnn/*",), ("*",))])
def test_a_scaffold_that_owns_nothing_is_a_problem(
    patterns: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    include, exclude = map(list, patterns)
    config = ScaffoldConfig(variables=VariablesConfig(include, exclude))
    problem = only(owned({"net": config}))
    assert problem.state == "scaffolds.net owns no variable"
    assert problem.cause == "nothing is included, or all of it is excluded again"


@pytest.mark.parametrize("place", ["include", "exclude"])
def test_patterns_of_both_kinds_must_match(place: str) -> None:
    patterns: dict[str, list[str]] = {"include": ["head/*"], "exclude": [], place: ["head/kernels"]}
    config = ScaffoldConfig(variables=VariablesConfig(**patterns))
    problem = only(owned({"net": config}))
    assert problem.state.startswith("scaffolds.net.variables: 'head/kernels' matches no")
    assert problem.choices[0] == "head/kernel"


def test_a_bad_expression_is_a_problem() -> None:
    problem = only(owned({"net": scaffold("re:(cnn"), "head": scaffold("head/*")}))
    assert problem.state == "scaffolds.net.variables holds '(cnn'"
    assert "not a regular expression: missing )" in problem.cause


def test_a_collision_is_a_problem_unless_one_wins() -> None:
    scaffolds = {"a": scaffold("cnn/*"), "b": scaffold("*/kernel")}
    problem = only(owned(scaffolds))
    assert problem.state == "scaffolds a and b claim the same variables: cnn/kernel"
    assert problem.choices == tuple(
        f"restoration.collision={each}" for each in ("first", "last", "mean")
    )
    for collision, winners in (
        (Collision.first, ("a",)),
        (Collision.last, ("b",)),
        (Collision.mean, ("a", "b")),
    ):
        ownership = owned(scaffolds, collision)
        assert not ownership.problems
        assert ownership.claims["cnn/kernel"] == winners
        assert ownership.claims["head/kernel"] == ("b",)


def test_collisions_of_three_are_told_once() -> None:
    three = {name: scaffold("*") for name in "abc"}
    problem = only(owned(three))
    assert problem.state == (
        "scaffolds a and b and c claim the same variables: cnn/kernel, cnn/moving_mean, head/kernel"
    )


def test_disjoint_classes_do_not_collide() -> None:
    ownership = owned(
        {
            "a": scaffold("cnn/*", state=[StateChoice.weights]),
            "b": scaffold("cnn/*", state=[StateChoice.batch_norm]),
        }
    )
    assert not ownership.problems
    assert ownership.claims == {"cnn/kernel": ("a",), "cnn/moving_mean": ("b",)}


def test_owners_of_a_mean_must_agree_on_training() -> None:
    scaffolds = {"a": scaffold("cnn/*", trainable=False), "b": scaffold("*")}
    problem = only(owned(scaffolds, Collision.mean))
    assert problem.state == (
        "scaffolds a and b share cnn/kernel, but not `trainable`: a has False, b has True"
    )


def test_some_names_and_how_many_more() -> None:
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some([str(number) for number in range(1003)]) == "0, 1, 2 and 1,000 more"
