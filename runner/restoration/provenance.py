"""Where every variable's value came from, as a document that links to those of its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.report import steps
from runner.runs.provenance import SCHEMA, Origin


def document(
    plan: RestorationPlan, run: Mapping[str, Any], origins: Mapping[str, Sequence[Origin]]
) -> dict[str, Any]:
    """Returns the provenance of the variables at the start of a run, as plain values.

    The keys are:

    - `schema`: 1, the version of this layout.
    - `run`: who trained on from here, as given.
    - `sources`: scaffold -> a list, of several checkpoints where they were averaged, of
      {`checkpoint`, `path`, `step`, `digest`, `run`, `provenance`}, see `Origin`; `provenance` is
      the whole document that was beside the checkpoint, so the chain outlives its files.
    - `variables`: name -> {`initializer`} or {`pieces`}, a list, of several tensors where they were
      averaged, of {`source` (scaffold), `path`, `tensors` (names), `step`, `digest`, `run_id` (of
      the MLflow run that wrote it, or null), `conversions` (in words, in order)}.

    Args:
      plan: the plan that was carried out.
      run: `experiment`, `run_dir`, `tracking_uri` and `run_id` of the run.
      origins: scaffold -> what its checkpoint was resolved to, for each that has one.
    """
    return {
        "schema": SCHEMA,
        "run": dict(run),
        "sources": {
            name: [vars(each) for each in origins[name]]
            for name, spec in plan.sources.items()
            if spec is not None
        },
        "variables": {
            each.variable.name: _variable(each, plan, origins) for each in plan.assignments
        },
    }


def _variable(
    assignment: Assignment, plan: RestorationPlan, origins: Mapping[str, Sequence[Origin]]
) -> dict[str, Any]:
    if not assignment.pieces:
        return {"initializer": assignment.variable.initializer}
    return {"pieces": [_piece(each, plan, origins[each.source]) for each in assignment.pieces]}


def _piece(piece: SourceTensor, plan: RestorationPlan, origins: Sequence[Origin]) -> dict[str, Any]:
    spec = plan.sources[piece.source]
    if spec is None:
        raise ValueError(f"the plan restores from {piece.source}, which has no checkpoint")
    writers = {each.run["run_id"] if each.run else None for each in origins}
    return {
        "source": piece.source,
        "path": spec.path,
        "tensors": list(piece.names),
        "step": spec.step,
        "digest": spec.digest,
        "run_id": writers.pop() if len(writers) == 1 else None,
        "conversions": list(steps(piece)),
    }
