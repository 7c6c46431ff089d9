"""The plan says for every variable where its value comes from, or what stands in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config import Collision, Missing, ScaffoldConfig, VariablesConfig
from runner.errors import PlanError, Problem
from runner.restoration.plan import Assignment, RestorationPlan, make_plan
from runner.restoration.variables import StateClass, VariableSpec


def variable(
    name: str, shape: tuple[int, ...] = (3,), state: StateClass = StateClass.WEIGHT
) -> VariableSpec:
    return VariableSpec(TensorSpec(name, shape, "float32"), state, True, "zeros")


VARIABLES = (
    variable("cnn/kernel", (3, 2)),
    variable("cnn/bias"),
    variable("cnn/norm/moving_mean", state=StateClass.BATCH_NORM),
    variable("cnn/kernel/Adam", (3, 2), StateClass.OPTIMIZER_SLOT),
    variable("cnn/kernel/ExponentialMovingAverage", (3, 2), StateClass.MOVING_AVERAGE),
    variable("cnn/seed_generator_state", (2,), StateClass.RANDOM_STATE),
    variable("head/kernel"),
    variable("global_step", (), StateClass.GLOBAL_STEP),
)
# A checkpoint of the whole model, with every class of state in it.
SOURCE = CheckpointSpec("runs/cnn/ckpt-9", 9, {each.name: each.tensor for each in VARIABLES})


def scaffold(include: str = "cnn/*", **options: Any) -> ScaffoldConfig:
    return ScaffoldConfig(VariablesConfig([include]), "runs/cnn", **options)


def renamed_source(**tensors: TensorSpec | None) -> CheckpointSpec:
    """SOURCE with tensors replaced, or removed where None is given."""
    changed = {**SOURCE.tensors, **tensors}
    return CheckpointSpec(
        SOURCE.path, SOURCE.step, {name: spec for name, spec in changed.items() if spec}
    )


def plan_for(config: ScaffoldConfig, source: CheckpointSpec | None = SOURCE) -> RestorationPlan:
    return make_plan(VARIABLES, {"cnn": config}, {"cnn": source})


def problem(config: ScaffoldConfig, source: CheckpointSpec | None = SOURCE) -> Problem:
    (found,) = plan_for(config, source).problems
    return found


def sources_of(plan: RestorationPlan) -> dict[str, str | None]:
    return {
        each.variable.name: None if each.tensor is None else each.tensor.name
        for each in plan.assignments
    }


def test_every_variable_is_accounted_for_in_order() -> None:
    assert [each.variable for each in plan_for(scaffold()).assignments] == list(VARIABLES)


def test_a_warm_start_brings_weights_and_batch_norm_statistics_only() -> None:
    plan = plan_for(scaffold("*"))
    assert plan.problems == ()
    assert sources_of(plan) == {
        "cnn/kernel": "cnn/kernel",
        "cnn/bias": "cnn/bias",
        "cnn/norm/moving_mean": "cnn/norm/moving_mean",
        "cnn/kernel/Adam": None,
        "cnn/kernel/ExponentialMovingAverage": None,
        "cnn/seed_generator_state": None,
        "head/kernel": "head/kernel",
        "global_step": None,
    }


def test_what_no_scaffold_owns_is_initialised() -> None:
    plan = plan_for(scaffold())
    assert Assignment(VARIABLES[6]) in plan.assignments
    assert {each.variable.name for each in plan.restored("cnn")} == {
        "cnn/kernel",
        "cnn/bias",
        "cnn/norm/moving_mean",
    }


def test_two_scaffolds_take_from_two_checkpoints() -> None:
    other = CheckpointSpec("other", None, {"head/kernel": VARIABLES[6].tensor})
    plan = make_plan(
        VARIABLES,
        {"cnn": scaffold("cnn/*"), "head": scaffold("head/*")},
        {"cnn": SOURCE, "head": other},
    )
    assert plan.problems == ()
    assert plan.sources == {"cnn": SOURCE, "head": other}
    assert len(plan.restored("cnn")) == 3
    assert [each.tensor for each in plan.restored("head")] == [VARIABLES[6].tensor]


def test_a_scaffold_without_checkpoint_owns_and_initialises() -> None:
    plan = plan_for(scaffold(rename={"nosuch/": "x/"}), None)
    assert plan.problems == ()
    assert plan.restored("cnn") == ()
    owned = [each.variable.name for each in plan.assignments if each.scaffold == "cnn"]
    assert owned == ["cnn/kernel", "cnn/bias", "cnn/norm/moving_mean"]
    assert plan.unused == {"cnn": ()}


def test_names_are_mapped_to_those_of_the_checkpoint() -> None:
    specs = [replace(v.tensor, name=v.name.replace("cnn/", "net/")) for v in VARIABLES]
    source = CheckpointSpec("x", 1, {each.name: each for each in specs})
    plan = plan_for(scaffold(rename={"cnn/": "net/"}), source)
    assert plan.problems == ()
    assert [each.tensor for each in plan.restored("cnn")] == specs[:3]


def test_tensors_that_nothing_took_are_listed() -> None:
    assert plan_for(scaffold("head/*")).unused == {
        "cnn": tuple(name for name in SOURCE.tensors if name != "head/kernel")
    }


def test_a_missing_tensor() -> None:
    spec = TensorSpec("cnn/kernels", (3, 2), "float32")
    found = problem(scaffold(), renamed_source(**{"cnn/kernel": None, "cnn/kernels": spec}))
    assert found.state == "scaffolds.cnn: no tensor 'cnn/kernel' for the variable cnn/kernel"
    assert found.cause == "runs/cnn/ckpt-9 holds 8 tensors, none of that name"
    assert found.choices[0] == "cnn/kernels"
    for remedy in ("scaffolds.cnn.rename", "exclude", "scaffolds.cnn.missing=init"):
        assert remedy in found.remedy


def test_a_missing_tensor_offers_those_of_its_shape_first() -> None:
    tensors = {
        "cnn/kernel_1": TensorSpec("cnn/kernel_1", (9, 9), "float32"),
        "features/w": TensorSpec("features/w", (3, 2), "float32"),
    }
    source = renamed_source(**{"cnn/kernel": None, **tensors})
    assert problem(scaffold(), source).choices[0] != "cnn/kernel_1"
    assert "cnn/kernel_1" not in problem(scaffold(), source).choices


def test_a_missing_tensor_offers_others_where_none_has_the_shape() -> None:
    tensors = {"x": TensorSpec("x", (7,), "float32")}
    found = problem(scaffold("head/*"), CheckpointSpec("p", None, tensors))
    assert found.choices == ("x",)


def test_a_missing_tensor_may_be_initialised() -> None:
    plan = plan_for(scaffold(missing=Missing.init), renamed_source(**{"cnn/kernel": None}))
    assert plan.problems == ()
    assert plan.assignments[0] == Assignment(VARIABLES[0], "cnn")
    assert len(plan.restored("cnn")) == 2


@pytest.mark.parametrize(
    ("tensor", "state"),
    [
        (TensorSpec("cnn/kernel", (3, 4), "float32"), "has shape [3, 2], but its tensor"),
        (TensorSpec("cnn/kernel", (3, 2), "float16"), "has dtype float32, but its tensor"),
    ],
)
def test_a_tensor_that_does_not_fit(tensor: TensorSpec, state: str) -> None:
    found = problem(scaffold(missing=Missing.init), renamed_source(**{"cnn/kernel": tensor}))
    assert found.state.startswith(f"scaffolds.cnn: cnn/kernel {state} cnn/kernel has ")
    assert "scaffolds.cnn.variables.exclude" in found.remedy


def test_a_rule_that_is_never_used() -> None:
    found = problem(scaffold(rename={"cnn/kernels": "x"}))
    assert found.state == "scaffolds.cnn.rename: the rule 'cnn/kernels' is never used"
    assert found.choices[0] == "cnn/kernel"


@pytest.mark.parametrize("rules", [{"re:(": "x"}, {"re:cnn/(.*)": r"\2"}, {"re:cnn.*": r"\g<x>"}])
def test_a_rule_that_is_not_valid(rules: dict[str, str]) -> None:
    found = problem(scaffold(rename=rules))
    assert found.state.startswith("scaffolds.cnn.rename holds ")
    assert found.cause.startswith("not a regular expression, or no replacement for one: ")


def test_problems_of_ownership_are_problems_of_the_plan() -> None:
    assert problem(scaffold("nosuch/*")).state.startswith("scaffolds.cnn.variables: 'nosuch/*'")


def test_optimizer_slots_cannot_be_selected() -> None:
    found = problem(scaffold("*/Adam"))
    assert found.state == "scaffolds.cnn.variables: '*/Adam' matches no variable of the model"


@pytest.mark.parametrize(("collision", "owner"), [(Collision.first, "a"), (Collision.last, "b")])
def test_the_order_can_decide_between_scaffolds(collision: Collision, owner: str) -> None:
    scaffolds = {"a": scaffold(), "b": scaffold()}
    plan = make_plan(VARIABLES, scaffolds, {"a": SOURCE, "b": SOURCE}, collision)
    assert plan.problems == ()
    assert {each.scaffold for each in plan.assignments if each.tensor} == {owner}


def test_every_problem_is_raised_at_once() -> None:
    tensors = {"cnn/kernel": TensorSpec("cnn/kernel", (9,), "int32")}
    plan = plan_for(scaffold(rename={"x": "y"}), CheckpointSpec("p", 1, tensors))
    assert len(plan.problems) == 5  # the rule, shape, dtype, bias, moving_mean
    with pytest.raises(PlanError, match=r"cnn/kernel has shape \[3, 2\]") as error:
        plan.require_sound()
    assert error.value.problems == plan.problems


def test_a_sound_plan_is_let_through() -> None:
    plan_for(scaffold()).require_sound()


def test_sources_and_scaffolds_must_match() -> None:
    with pytest.raises(ValueError, match=r"sources \['lstm'\] are not for scaffolds \['cnn'\]"):
        make_plan(VARIABLES, {"cnn": scaffold()}, {"lstm": SOURCE})
