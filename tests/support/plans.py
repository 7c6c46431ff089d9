"""Builds the inputs of a restoration plan in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.choices import Collision, Expect, StateClass
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.errors import Problem
from runner.planning.plan import Assignment, LocatedSources, RestorationPlan, make_plan
from runner.planning.variables import Partition, VariableSpec, classify
from runner.rules.source_tensors import SourceTensor

Shape = tuple[int, ...]


def variable(
    name: str,
    shape: Shape = (2, 3),
    dtype: str = "float32",
    state: StateClass | None = None,
    trainable: bool = True,
    frozen: bool = False,
    partition: Partition | None = None,
) -> VariableSpec:
    """Returns a variable, by default of the class that its name says."""
    state = state or classify(name, model=True)
    trainable = trainable and not frozen and state is StateClass.weights
    return VariableSpec(
        TensorSpec(name, shape, dtype), state, trainable, "Const", frozen, partition
    )


def slot(name: str, shape: Shape = (2, 3)) -> VariableSpec:
    """Returns a variable that an optimizer creates."""
    return variable(name, shape, state=StateClass.optimizer_slots)


def checkpoint(
    *names: str,
    shapes: Mapping[str, Shape] | None = None,
    dtype: str = "float32",
    digest: str = "",
    **changes: Any,
) -> CheckpointSpec:
    """Returns a checkpoint with these tensors of shape (2, 3), and those of `shapes`."""
    sized = {**dict.fromkeys(names, (2, 3)), **(shapes or {})}
    tensors = {name: TensorSpec(name, shape, dtype) for name, shape in sized.items()}
    fields = {"path": "ckpt/model", "step": 7, "tensors": tensors, "content": lambda: digest}
    return CheckpointSpec(**{**fields, **changes})


def scaffold(*include: str, exclude: Sequence[str] = (), **changes: Any) -> ScaffoldConfig:
    """Returns a scaffold with these patterns and a checkpoint."""
    return ScaffoldConfig(
        variables=VariablesConfig(include=list(include or ("*",)), exclude=list(exclude)),
        **{"checkpoint": "ckpt", **changes},
    )


def plan(
    variables: Sequence[VariableSpec],
    scaffolds: dict[str, ScaffoldConfig],
    sources: dict[str, CheckpointSpec | None],
    collision: Collision = Collision.error,
    expect: dict[str, Expect] | None = None,
    unusable: dict[str, list[Problem]] | None = None,
) -> RestorationPlan:
    """Makes the plan."""
    return make_plan(
        variables,
        scaffolds,
        LocatedSources(sources, unusable or {}),
        collision=collision,
        expect=expect,
    )


def one(
    variables: Sequence[VariableSpec], config: ScaffoldConfig, source: CheckpointSpec
) -> RestorationPlan:
    """Makes the plan of one scaffold called `net`."""
    return plan(variables, {"net": config}, {"net": source})


def by_name(restoration_plan: RestorationPlan) -> dict[str, Assignment]:
    """Returns the assignments by variable."""
    return {assignment.variable.name: assignment for assignment in restoration_plan.assignments}


def source_of(restoration_plan: RestorationPlan, name: str) -> SourceTensor:
    """Returns the source of a variable's value."""
    source = by_name(restoration_plan)[name].source_tensor
    assert source is not None
    return source


def origins(restoration_plan: RestorationPlan) -> dict[str, list[str]]:
    """Returns variable -> `scaffold: tensor` of each source tensor."""
    return {
        assignment.variable.name: [
            f"{source_tensor.source}: {'+'.join(source_tensor.names)}"
            for source_tensor in [assignment.source_tensor]
            if source_tensor
        ]
        for assignment in restoration_plan.assignments
    }


def only(restoration_plan: RestorationPlan) -> Problem:
    """Returns the one problem of a plan."""
    (problem,) = restoration_plan.problems
    return problem
