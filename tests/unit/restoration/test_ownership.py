"""Each variable has one owner, and whatever does not fit is a problem."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runner.config import Collision, ScaffoldConfig, VariablesConfig
from runner.errors import Problem
from runner.restoration.ownership import assign_owners

NAMES = ("cnn/conv1/kernel", "cnn/conv1/bias", "cnn/conv2/kernel", "cnn/conv2/bias", "head/kernel")


def scaffold(
    include: Sequence[str], exclude: Sequence[str] = (), *, trainable: bool = True
) -> ScaffoldConfig:
    return ScaffoldConfig(VariablesConfig(list(include), list(exclude)), trainable=trainable)


def problem(scaffolds: dict[str, ScaffoldConfig]) -> Problem:
    (found,) = assign_owners(NAMES, scaffolds, Collision.error).problems
    return found


def test_what_is_selected_is_owned() -> None:
    scaffolds = {"cnn": scaffold(["cnn/*"], ["*/bias"]), "head": scaffold(["head/*"])}
    ownership = assign_owners(NAMES, scaffolds, Collision.error)
    assert ownership.owners == {
        "cnn/conv1/kernel": "cnn",
        "cnn/conv2/kernel": "cnn",
        "head/kernel": "head",
    }
    assert ownership.problems == ()


def test_no_scaffolds_own_nothing() -> None:
    ownership = assign_owners(NAMES, {}, Collision.error)
    assert (ownership.owners, ownership.problems) == ({}, ())


def test_frozen_is_what_a_scaffold_that_does_not_train_owns() -> None:
    scaffolds = {"cnn": scaffold(["cnn/conv1/*"], trainable=False), "head": scaffold(["head/*"])}
    ownership = assign_owners(NAMES, scaffolds, Collision.error)
    assert ownership.frozen(scaffolds) == {"cnn/conv1/kernel", "cnn/conv1/bias"}


@pytest.mark.parametrize("place", ["include", "exclude"])
def test_a_pattern_that_matches_no_variable(place: str) -> None:
    patterns: dict[str, list[str]] = {"include": ["head/*"], "exclude": []}
    patterns[place].append("cnn/conv1/kernels")
    found = problem({"mine": scaffold(patterns["include"], patterns["exclude"])})
    assert found.state == (
        "scaffolds.mine.variables: 'cnn/conv1/kernels' matches no variable of the model"
    )
    assert found.choices[0] == "cnn/conv1/kernel"
    assert "~scaffolds.mine" in found.remedy


def test_an_expression_that_is_not_valid() -> None:
    found = problem({"mine": scaffold(["re:("])})
    assert found.state == "scaffolds.mine.variables holds '('"
    assert found.cause.startswith("not a regular expression: missing ), unterminated subpattern")


@pytest.mark.parametrize("nothing", [scaffold([]), scaffold(["cnn/*"], ["*"])])
def test_a_scaffold_that_owns_nothing(nothing: ScaffoldConfig) -> None:
    assert problem({"mine": nothing}).state == "scaffolds.mine owns no variable"


def test_two_owners_are_a_problem() -> None:
    found = problem({"cnn": scaffold(["cnn/*"]), "rest": scaffold(["*"])})
    assert found.state == (
        "scaffolds cnn and rest claim the same variables: "
        "cnn/conv1/kernel, cnn/conv1/bias, cnn/conv2/kernel and 1 more"
    )
    assert found.choices == ("restoration.collision=first", "restoration.collision=last")


def test_three_owners_are_one_problem() -> None:
    same = scaffold(["head/*"])
    found = problem({"a": same, "b": same, "c": same})
    assert found.state == "scaffolds a and b and c claim the same variables: head/kernel"


@pytest.mark.parametrize(
    ("collision", "owner"), [(Collision.first, "cnn"), (Collision.last, "kernels")]
)
def test_the_order_can_decide(collision: Collision, owner: str) -> None:
    scaffolds = {"cnn": scaffold(["cnn/*"]), "kernels": scaffold(["*/kernel"])}
    ownership = assign_owners(NAMES, scaffolds, collision)
    assert ownership.problems == ()
    assert ownership.owners["cnn/conv1/kernel"] == owner
    assert ownership.owners["cnn/conv1/bias"] == "cnn"
    assert ownership.owners["head/kernel"] == "kernels"


def test_every_problem_is_reported() -> None:
    scaffolds = {
        "a": scaffold(["re:(", "*"]),
        "b": scaffold(["nosuch/*", "nothing"]),
        "c": scaffold(["*"]),
        "d": scaffold(["head/*"]),
    }
    states = [each.state for each in assign_owners(NAMES, scaffolds, Collision.error).problems]
    assert [state.split(":")[0] for state in states] == [
        "scaffolds.a.variables holds '('",
        "scaffolds.b.variables",
        "scaffolds.b.variables",
        "scaffolds c and d claim the same variables",
    ]
