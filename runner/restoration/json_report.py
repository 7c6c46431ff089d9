"""Writes a restoration plan as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.restoration import dtypes
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.report import steps

# Raised when a key changes its meaning or goes away; new keys may come without it.
SCHEMA = 1


def json_text(plan: RestorationPlan, devices: Mapping[str, str] | None = None) -> str:
    """Returns the plan as a JSON object in ASCII, indented, ending in a newline; see `document`."""
    return json.dumps(document(plan, devices), indent=2, allow_nan=False) + "\n"


def document(plan: RestorationPlan, devices: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the plan as plain values, with every variable.

    Args:
      plan: the plan.
      devices: variable name -> where it is in a cluster, such as `/job:ps/task:0`.

    The keys are:

    - `schema`: 1, the version of this layout.
    - `sound`: whether there are no problems.
    - `problems`: a list of {`state`, `cause`, `remedy`, `choices`}.
    - `notes`: what concerns no single variable.
    - `sources`: scaffold -> null without a checkpoint, else {`path`, `format`, `digest`, `step`
      (null when it has none), `tensors` (how many), `bytes` (of all), `unused` (names), `finite`
      (whether NaN is an error), `restored` (how many variables), `restored_bytes` (of these)}.
    - `unusable`: the scaffolds whose checkpoint cannot be used, as `problems` say.
    - `variables`: in the order of the graph {`name`, `shape`, `dtype`, `state` (its class),
      `bytes`, `scaffold` (null when none owns it), `origin` (`checkpoint`, `initializer`,
      or `unknown` in an unusable scaffold), `initializer`, `pieces`, `notes`, `trainable`,
      `frozen`, `freeze_until_step`, `learning_rate_multiplier`, `partition` (null, or
      {`name`, `shape`, `offset`}), and in a cluster `device`}.
    - `pieces`: a list of {`source` (scaffold), `tensors` (a list of {`name`, `shape`, `dtype`}),
      `conversions` (in words, in order)}; the value is the mean of several pieces.
    """
    return {
        "schema": SCHEMA,
        "sound": not plan.problems,
        "problems": [
            {
                "state": each.state,
                "cause": each.cause,
                "remedy": each.remedy,
                "choices": list(each.choices),
            }
            for each in plan.problems
        ],
        "notes": list(plan.notes),
        "sources": {name: _source(plan, name, spec) for name, spec in plan.sources.items()},
        "unusable": sorted(plan.unusable),
        "variables": [
            _variable(each, plan) | ({"device": devices[each.variable.name]} if devices else {})
            for each in plan.assignments
        ],
    }


def _source(
    plan: RestorationPlan, scaffold: str, source: CheckpointSpec | None
) -> dict[str, Any] | None:
    if source is None:
        return None
    restored = plan.restored(scaffold)
    return {
        "path": source.path,
        "format": source.format,
        "digest": source.digest,
        "step": source.step,
        "tensors": len(source.tensors),
        "bytes": sum(_bytes(each) for each in source.tensors.values()),
        "unused": list(plan.unused[scaffold]),
        "finite": scaffold in plan.finite,
        "restored": len(restored),
        "restored_bytes": sum(_bytes(each.variable.tensor) for each in restored),
    }


def _variable(assignment: Assignment, plan: RestorationPlan) -> dict[str, Any]:
    variable = assignment.variable
    partition = variable.partition
    origin = "unknown" if assignment.scaffold in plan.unusable else "initializer"
    return {
        **_tensor(variable.tensor),
        "state": variable.state.value,
        "bytes": _bytes(variable.tensor),
        "scaffold": assignment.scaffold,
        "origin": "checkpoint" if assignment.pieces else origin,
        "initializer": variable.initializer,
        "pieces": [_piece(each) for each in assignment.pieces],
        "notes": list(assignment.notes),
        "trainable": variable.trainable,
        "frozen": variable.frozen,
        "freeze_until_step": assignment.freeze_until_step,
        "learning_rate_multiplier": assignment.learning_rate_multiplier,
        "partition": partition
        and {
            "name": partition.name,
            "shape": list(partition.shape),
            "offset": list(partition.offset),
        },
    }


def _piece(piece: SourceTensor) -> dict[str, Any]:
    return {
        "source": piece.source,
        "tensors": [_tensor(each) for each in (piece.tensor, *piece.others)],
        "conversions": list(steps(piece)),
    }


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _bytes(tensor: TensorSpec) -> int:
    return dtypes.size_in_bytes(tensor.shape, tensor.dtype)
