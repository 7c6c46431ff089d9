"""Where every variable's value came from, as a document that links to those of its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.rows import steps

SCHEMA = 1


@dataclass(frozen=True)
class Origin:
    """A checkpoint that a source was resolved to.

    Attributes:
      checkpoint: as the configuration names it.
      path: what it was resolved to.
      step: the global step it was saved at; None when it holds none.
      digest: of its content.
      run: `run` of the provenance beside it, or {`run_id`} of a `runs:/` URI; None when unknown.
      provenance: the document beside it; None when there is none.
    """

    checkpoint: str
    path: str
    step: int | None
    digest: str
    run: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None


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


def chain(found: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yields lines that say where a checkpoint's variables came from, back to the first source."""
    run = found["run"]
    yield f"{indent}{run['experiment']} in {run['run_dir']}{_tracked(run)}"
    for name, variable in found["variables"].items():
        for piece in variable.get("pieces", ()):
            step = "" if piece["step"] is None else f" @ step {piece['step']}"
            how = f" ({', '.join(piece['conversions'])})" if piece["conversions"] else ""
            tensors = " + ".join(piece["tensors"])
            yield f"{indent}  {name} <- {piece['source']}: {tensors}{step}{how}"
    initialised = [name for name, each in found["variables"].items() if "initializer" in each]
    yield f"{indent}  {len(initialised)} from initializers: {', '.join(initialised) or 'none'}"
    for name, origins in found["sources"].items():
        for origin in origins:
            yield f"{indent}  {name}: {origin['path']} {origin['digest']}{_tracked(origin['run'])}"
            if origin["provenance"] is not None:
                yield from chain(origin["provenance"], indent + "    ")


def _tracked(run: Mapping[str, Any] | None) -> str:
    if run is None or run.get("run_id") is None:
        return ""
    return f", MLflow run {run['run_id']}"


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
