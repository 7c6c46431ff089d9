"""Plans over several sources: what comes from where, and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import Collision, Expect, Missing, StateClass
from runner.errors import Problem
from runner.planning.variables import VariableSpec
from runner.rules.combinations import Sum
from runner.rules.conversions import Cast, PadOrSlice, Transpose
from runner.rules.source_tensors import SourceTensor
from tests.support.plans import by_name, checkpoint, one, origins, plan, scaffold, slot, variable

TENSOR = TensorSpec("w", (2, 3), "float64")


def test_a_piece_of_several_tensors_and_steps() -> None:
    other = TensorSpec("v", (2, 3), "float64")
    steps = (Transpose((1, 0)), Cast("float32"), PadOrSlice((3, 2), (3, 3), (0, 0)))
    operands = (SourceTensor("net", TENSOR), SourceTensor("net", other))
    source_tensor = SourceTensor("net", None, steps, operands, Sum())
    assert source_tensor.needs_initial
    assert source_tensor.names == ("w", "v")
    values, initial = [np.ones((2, 3)), np.ones((2, 3))], np.zeros((3, 3), np.float32)
    result = source_tensor.convert(values, initial)
    assert result.dtype == np.float32
    assert result.tolist() == [[2, 2, 0]] * 3


def test_each_scaffold_brings_its_own() -> None:
    made = plan(
        [variable("cnn/k"), variable("lstm/k"), variable("head/k"), variable("global_step", ())],
        {"cnn": scaffold("cnn/*"), "lstm": scaffold("lstm/*"), "head": scaffold("head/*")},
        {"cnn": checkpoint("cnn/k"), "lstm": checkpoint("lstm/k", "extra"), "head": None},
    )
    assert not made.problems
    assert origins(made) == {
        "cnn/k": ["cnn: cnn/k"],
        "lstm/k": ["lstm: lstm/k"],
        "head/k": [],
        "global_step": [],
    }
    assert [assignment.scaffold for assignment in made.assignments] == ["cnn", "lstm", "head", None]
    assert made.unused == {"cnn": (), "lstm": ("extra",), "head": ()}


@pytest.mark.parametrize(
    ("collision", "expected"),
    [(Collision.first, ["a: w"]), (Collision.last, ["b: w"])],
)
def test_collisions_that_are_allowed(collision: Collision, expected: list[str]) -> None:
    made = plan(
        [variable("w"), variable("v")],
        {"a": scaffold("w"), "b": scaffold()},
        {"a": checkpoint("w"), "b": checkpoint("w", "v")},
        collision,
    )
    assert not made.problems
    assert origins(made) == {"w": expected, "v": ["b: v"]}
    assert by_name(made)["w"].notes == ()
    loser = {"first": "b", "last": "a"}[collision.value]
    assert made.unused == {name: ("w",) if name == loser else () for name in "ab"}


def test_a_checkpoint_that_cannot_be_used_hides_no_other_problem() -> None:
    made = plan(
        [variable("a/k"), variable("b/k"), variable("b/m"), variable("c")],
        {
            "a": scaffold("a/*", rename={"re:(": ""}, optional=True),
            "b": scaffold("b/*"),
            "c": scaffold("c", "nothing"),
        },
        {"a": None, "b": checkpoint("b/k"), "c": None},
        expect={"a": Expect.all, "?/k": Expect.all, "a/*": Expect.some, "b": Expect.scratch},
        unusable={"a": [Problem("no a")], "c": [Problem("no c"), Problem("none")]},
    )
    assert [problem.state for problem in made.problems] == [
        "scaffolds.c.variables: 'nothing' matches no variable of the model",
        "no a",
        "scaffolds.a.rename: re:(: ",
        "scaffolds.b: no tensor 'b/m' for the variable b/m",
        "no c",
        "none",
        "restoration.expect.b is `scratch`, but b/k would be restored",
    ]
    assert origins(made) == {"a/k": [], "b/k": ["b: b/k"], "b/m": [], "c": []}
    assert made.unusable == {"a", "c"}
    assert not made.notes, "an optional checkpoint that is there and bad is not absent"
    assert {assignment.scaffold: assignment.notes for assignment in made.assignments}["a"] == ()


def test_an_expectation_is_not_met_by_what_is_not_known() -> None:
    made = plan(
        [variable("a"), variable("b")],
        {"a": scaffold("a"), "b": scaffold("b", missing=Missing.init)},
        {"a": None, "b": checkpoint("c")},
        expect={"?": Expect.all},
        unusable={"a": [Problem("no a")]},
    )
    assert [problem.state for problem in made.problems] == [
        "no a",
        "restoration.expect.? is `all`, but b would be initialised",
    ]


def test_optimizer_state_of_all_variables_is_noted() -> None:
    config = scaffold("a", state=[StateClass.weights, StateClass.optimizer_slots])
    made = one(
        [variable("a"), slot("a/Adam"), slot("beta1_power", ())], config, checkpoint("a", "a/Adam")
    )
    assert not made.problems
    (note,) = made.notes
    assert note.startswith("beta1_power: the optimizer keeps this for more variables than one")


def _adam(*names: str, group: str = "") -> list[VariableSpec]:
    power = replace(slot(f"{group}beta1_power", ()), shared_by=names)
    return [*map(variable, names), *(slot(f"{name}/Adam") for name in names), power]


SLOTS = [StateClass.weights, StateClass.optimizer_slots]


@pytest.mark.parametrize("source", ["beta1_power", "rate_x0.1/beta1_power", "beta1_power_1"])
@pytest.mark.parametrize("group", ["", "from_step_5/"])
def test_what_an_optimizer_keeps_for_all_goes_with_all(group: str, source: str) -> None:
    held = checkpoint("a", "b", "a/Adam", "b/Adam", shapes={source: ()})
    made = one(_adam("a", "b", group=group), scaffold("?", state=SLOTS), held)
    assert not made.problems
    assert not made.notes
    assert origins(made)[f"{group}beta1_power"] == [f"net: {source}"]
    notes = by_name(made)[f"{group}beta1_power"].notes
    assert notes == (() if f"{group}beta1_power" == source else ("the source's only beta1_power",))


def test_of_several_groups_the_one_of_the_same_name_is_taken_or_none() -> None:
    powers = {"rate_x2/beta1_power": (), "from_step_5/beta1_power": ()}
    held = checkpoint("a", "a/Adam", shapes=powers)
    made = one(_adam("a", group="rate_x2/"), scaffold("a", state=SLOTS), held)
    assert origins(made)["rate_x2/beta1_power"] == ["net: rate_x2/beta1_power"]
    made = one(_adam("a"), scaffold("a", state=SLOTS), held)
    assert not made.problems
    assert origins(made)["beta1_power"] == []
    assert by_name(made)["beta1_power"].notes == ("no tensor: initialised",)
    rename = {"beta1_power": "rate_x2/beta1_power"}
    made = one(_adam("a"), scaffold("a", state=SLOTS, rename=rename), held)
    assert origins(made)["beta1_power"] == ["net: rate_x2/beta1_power"]
    (problem,) = one(_adam("a"), scaffold("a", "beta*", state=SLOTS), held).problems
    assert problem.state == "scaffolds.net: no tensor 'beta1_power' for the variable beta1_power"


NAMES = ("cnn/a", "cnn/b", "head/a")


def problems(expect: dict[str, Expect], missing: tuple[str, ...] = ()) -> tuple[Problem, ...]:
    made = plan(
        [variable(name) for name in NAMES],
        {
            "cnn": scaffold("cnn/*", missing=Missing.init),
            "head": scaffold("head/*", checkpoint=None),
        },
        {"cnn": checkpoint(*(set(NAMES[:2]) - set(missing))), "head": None},
        expect=expect,
    )
    return made.problems


@pytest.mark.parametrize("key", ["cnn", "cnn/*", "re:cnn/."])
@pytest.mark.parametrize(
    ("missing", "expect", "unmet"),
    [
        ((), Expect.all, None),
        (("cnn/a",), Expect.some, None),
        (NAMES[:2], Expect.scratch, None),
        (("cnn/a",), Expect.all, "is `all`, but cnn/a would be initialised"),
        (NAMES[:2], Expect.some, "is `some`, but cnn/a, cnn/b would be initialised"),
        ((), Expect.scratch, "is `scratch`, but cnn/a, cnn/b would be restored"),
    ],
)
def test_what_ends_otherwise_than_expected_is_a_problem(
    missing: tuple[str, ...], expect: Expect, unmet: str | None, key: str
) -> None:
    found = problems({key: expect, "head": Expect.scratch}, missing)
    assert [each.state for each in found] == (
        [f"restoration.expect.{key} {unmet}"] if unmet else []
    )
    assert all(expect.value not in each.choices for each in found)


def test_a_pattern_is_not_about_slots_that_nobody_asked_for() -> None:
    variables = [variable("a"), slot("a/Adam"), variable("global_step", (), "int64")]
    source = checkpoint("a", "a/Adam")

    def states(state: list[StateClass], expect: dict[str, Expect]) -> list[str]:
        made = plan(variables, {"net": scaffold("a", state=state)}, {"net": source}, expect=expect)
        return [each.state for each in made.problems]

    weights, both = [StateClass.weights], [StateClass.weights, StateClass.optimizer_slots]
    assert states(weights, {"*": Expect.all, "a*": Expect.all}) == []
    assert states(both, {"*": Expect.all, "a/Adam": Expect.all}) == []
    assert states(weights, {"a/Adam": Expect.all}) == [
        "restoration.expect.a/Adam is `all`, but a/Adam would be initialised"
    ]
    assert states(both, {"a/*": Expect.scratch}) == [
        "restoration.expect.a/* is `scratch`, but a/Adam would be restored"
    ]


def test_an_expectation_of_nothing_or_with_a_bad_expression_is_a_problem() -> None:
    nothing, bad = problems({"heat": Expect.all, "re:(": Expect.all})
    assert nothing.state == "restoration.expect: 'heat' concerns no variable"
    assert nothing.choices == ("head",)
    assert bad.state == "restoration.expect: re:("
