"""Plans over several sources, as a whole."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Collision, Expect, Missing, StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.planner import make_plan
from runner.restoration.variables import VariableSpec
from tests.tiny.plans import by_name, checkpoint, one, origins, plan, scaffold, slot, variable


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
    assert [each.scaffold for each in made.assignments] == ["cnn", "lstm", "head", None]
    assert made.unused == {"cnn": (), "lstm": ("extra",), "head": ()}


def test_sources_are_for_the_scaffolds() -> None:
    with pytest.raises(ValueError, match=r"sources \['b'\] are not for scaffolds \['a'\]"):
        make_plan([], {"a": scaffold()}, {"b": None})


@pytest.mark.parametrize(
    ("collision", "expected"),
    [
        (Collision.first, ["a: w"]),
        (Collision.last, ["b: w"]),
        (Collision.mean, ["a: w", "b: w"]),
    ],
)
def test_collisions_that_are_allowed(collision: Collision, expected: list[str]) -> None:
    made = plan(
        [variable("w")],
        {"a": scaffold(), "b": scaffold()},
        {"a": checkpoint("w"), "b": checkpoint("w")},
        collision,
    )
    assert not made.problems
    assert origins(made) == {"w": expected}
    means = ("mean of 2 checkpoints",) if collision is Collision.mean else ()
    assert by_name(made)["w"].notes == means
    loser = {"first": "b", "last": "a", "mean": ""}[collision.value]
    assert made.unused == {name: ("w",) if name == loser else () for name in "ab"}


def test_a_mean_leaves_out_who_has_nothing() -> None:
    made = plan(
        [variable("w")],
        {"a": scaffold(missing=Missing.init), "b": scaffold()},
        {"a": checkpoint("v"), "b": checkpoint("w")},
        Collision.mean,
    )
    assert origins(made) == {"w": ["b: w"]}
    assert by_name(made)["w"].notes == ("no tensor 'w': initialised",)


def test_schedules_are_in_the_plan() -> None:
    config = scaffold("a/*", freeze_until_step=500, learning_rate_multiplier=0.1)
    made = one(
        [variable("a/k"), variable("a/moving_mean"), variable("b")],
        config,
        checkpoint("a/k", "a/moving_mean"),
    )
    found = by_name(made)
    assert (found["a/k"].freeze_until_step, found["a/k"].learning_rate_multiplier) == (500, 0.1)
    for name in ("a/moving_mean", "b"):
        each = found[name]
        assert (each.freeze_until_step, each.learning_rate_multiplier) == (0, 1.0)


def test_finite_is_passed_on() -> None:
    made = plan(
        [variable("a"), variable("b")],
        {"a": scaffold("a", finite=True), "b": scaffold("b")},
        {"a": checkpoint("a"), "b": checkpoint("b")},
    )
    assert made.finite == {"a"}


def test_an_optional_checkpoint_that_is_absent_is_noted() -> None:
    made = plan([variable("a")], {"net": scaffold(optional=True)}, {"net": None})
    assert not made.problems
    assert made.notes == (
        "net: the checkpoint is optional and absent; its variables are initialised",
    )


def test_a_checkpoint_that_cannot_be_used_hides_no_other_problem() -> None:
    made = plan(
        [variable("a/k"), variable("b/k"), variable("b/m"), variable("c")],
        {
            "a": scaffold("a/*", rename={"x/": ""}, optional=True),
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
        "scaffolds.a.rename: the rule 'x/' is never used",
        "scaffolds.b: no tensor 'b/m' for the variable b/m",
        "no c",
        "none",
        "restoration.expect.b is `scratch`, but b/k would be restored",
    ]
    assert origins(made) == {"a/k": [], "b/k": ["b: b/k"], "b/m": [], "c": []}
    assert made.unusable == {"a", "c"}
    assert not made.notes, "an optional checkpoint that is there and bad is not absent"
    assert {each.scaffold: each.notes for each in made.assignments}["a"] == ()


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
    config = scaffold("a", state=[StateChoice.weights, StateChoice.optimizer_slots])
    made = one(
        [variable("a"), slot("a/Adam"), slot("beta1_power", ())], config, checkpoint("a", "a/Adam")
    )
    assert not made.problems
    (note,) = made.notes
    assert note.startswith("beta1_power: the optimizer keeps this for more variables than one")


def _adam(*names: str, group: str = "") -> list[VariableSpec]:
    power = replace(slot(f"{group}beta1_power", ()), kept_for=names)
    return [*map(variable, names), *(slot(f"{name}/Adam") for name in names), power]


SLOTS = [StateChoice.weights, StateChoice.optimizer_slots]


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
    assert by_name(made)["beta1_power"].notes == (
        "no tensor 'beta1_power', the source has rate_x2/beta1_power, from_step_5/beta1_power; "
        "rename it to one of them: initialised",
    )
    rename = {"beta1_power": "rate_x2/beta1_power"}
    made = one(_adam("a"), scaffold("a", state=SLOTS, rename=rename), held)
    assert origins(made)["beta1_power"] == ["net: rate_x2/beta1_power"]
    (problem,) = one(_adam("a"), scaffold("a", "beta*", state=SLOTS), held).problems
    assert problem.state == "scaffolds.net: no tensor 'beta1_power' for the variable beta1_power"


def test_all_problems_are_told_at_once() -> None:
    made = plan(
        [variable("a/k"), variable("b/k", (5,)), variable("c/k")],
        {
            "a": scaffold("a/*", "nothing/*", rename={"x/": "y/"}),
            "b": scaffold("b/*"),
            "c": scaffold("c/*", "b/*"),
        },
        {"a": checkpoint("other"), "b": checkpoint("b/k"), "c": checkpoint("c/k", dtype="int8")},
    )
    states = "\n".join(problem.state for problem in made.problems)
    for part in (
        "'nothing/*' matches no variable",
        "scaffolds b and c claim the same variables: b/k",
        "the rule 'x/' is never used",
        "no tensor 'a/k'",
        "b/k has shape [5]",
        "float32 variables have int8 tensors: c/k",
    ):
        assert part in states
    assert len(made.problems) == 6


@pytest.mark.parametrize(("count", "seconds"), [(5_000, 1.0), (50_000, 10.0)])
@pytest.mark.parametrize("broken", [False, True])
def test_planning_stays_fast(count: int, seconds: float, broken: bool) -> None:
    scaffolds: dict[str, ScaffoldConfig] = {}
    sources: dict[str, CheckpointSpec | None] = {}
    variables: list[VariableSpec] = []
    for name in "abc":
        names = [
            f"{name}/block_{number // 50}/layer_{number % 50}/kernel"
            for number in range(count // 3)
        ]
        variables += [variable(each) for each in names]
        if broken:  # Half of the names have no counterpart, irregularly.
            names = [each.replace("_1", "-x") for each in names]
        scaffolds[name] = scaffold(f"{name}/*", rename={f"{name}/": f"{name}/"})
        sources[name] = checkpoint(*names)
    start = time.process_time()
    made = plan(variables, scaffolds, sources)
    assert time.process_time() - start < seconds
    assert bool(made.problems) is broken
