"""A plan as JSON documents: the plan itself, and the provenance of a run's variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.checkpoints.reader import CheckpointSpec
from runner.planning.plan import Assignment, RestorationPlan
from runner.planning.report import model_counts
from runner.runs import provenance
from runner.runs.provenance import Origin

# Raised when a key changes its meaning or is removed; new keys may be added without that.
SCHEMA = 3


def json_text(plan: RestorationPlan, devices: Mapping[str, str] | None = None) -> str:
    """Returns the plan as a JSON object in ASCII, with all variables and, in a cluster, devices.

    The keys are:

    - `schema`: 3, the version of this layout.
    - `sound`: whether there are no problems.
    - `model`: {`variables`, `restored`, `brought`, `unknown`, `bytes`, `restored_bytes`,
      `checkpoints`}, the counts of `report.model_counts`.
    - `problems`: a list of {`state`, `cause`, `remedy`, `choices`}.
    - `notes`: remarks on the plan as a whole.
    - `warnings`: what is probably wrong, though everything fits.
    - `sources`: scaffold -> null without a checkpoint, else {`path`, `format`, `digest`, `step`
      (null when it has none), `tensors` (how many), `bytes` (of all), `unused` (names),
      `non_finite` (`error` or `warning`, what NaN and infinity in a restored tensor are),
      `restored` (how many variables), `restored_bytes` (of these)}.
    - `proofs`: how a model with these values compares with references: a list of the attributes of
      `comparison.Proof`, with `agrees` and `first_difference`.
    - `unusable`: the scaffolds whose checkpoint cannot be used, see `problems`.
    - `variables`: in the order of the graph {`name`, `shape`, `dtype`, `state` (its class),
      `bytes`, `scaffold` (null when none owns it), `origin` (`checkpoint`, `initializer`, `model`
      where the model brings the value along, or `unknown` in an unusable scaffold), `initializer`
      (its name, such as `GlorotUniform`; with a digest where the model brings the value along;
      empty for an eager variable, which keeps its value), `source_tensor`, `notes`, `trainable`,
      `frozen`, `freeze_until_step`, `learning_rate_multiplier`, `partition` (null, or
      {`name`, `shape`, `offset`}), `shared_by`, `layer`, `flattened`, `address` and `axes` (see
      `VariableSpec`), and in a cluster `device`}.
    - `source_tensor`: null where nothing is restored, else {`source` (scaffold), `tensors` (a list
      of {`name`, `shape`, `dtype`}), `conversions` (in words, in order)}.
    """
    document = {
        "schema": SCHEMA,
        "sound": not plan.problems,
        "model": model_counts(plan),
        "problems": [vars(problem) for problem in plan.problems],
        "notes": plan.notes,
        "warnings": plan.warnings,
        "sources": {name: _source(plan, name, spec) for name, spec in plan.sources.items()},
        "proofs": [proof.document() for proof in plan.proofs],
        "unusable": sorted(plan.unusable),
        "variables": [
            _variable(assignment, plan)
            | ({"device": devices[assignment.variable.name]} if devices else {})
            for assignment in plan.assignments
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def provenance_document(
    plan: RestorationPlan,
    origins: Mapping[str, Sequence[Origin]],
    *,
    experiment: str,
    run_dir: str | Path,
    tracking_uri: str | None = None,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Returns where the variables of a run came from at its start, as plain values.

    Args:
      plan: the plan that was carried out.
      origins: scaffold -> the checkpoints that its source was resolved to.
      experiment: the name of the experiment or model.
      run_dir: the run directory, or the directory that the model is trained in.
      tracking_uri: MLflow's tracking URI, if the run is recorded there.
      run_id: the id of the MLflow run, once it is known.

    The keys are:

    - `schema`: 2, the version of this layout.
    - `run`: the run that trained from here: {`experiment`, `run_dir`, `tracking_uri`, `run_id`}.
    - `sources`: scaffold -> a list, of several checkpoints where they were averaged, of
      {`checkpoint`, `path`, `step`, `digest`, `run`, `provenance`}, see `Origin`; `provenance` is
      the whole document that was beside the checkpoint, so that the chain outlives its files.
    - `variables`: name -> {`initializer`} or {`source_tensor`}, which is {`source`
      (scaffold), `path`, `tensors` (names), `step`, `digest`, `run_id` (of the MLflow run that
      wrote it, or null), `conversions` (in words, in order)}; a run adds `first_value`, its
      `reading.checksum`, when the value has been read.
    - `proofs`: as in `json_text`.
    """
    identity = {"experiment": experiment, "run_dir": str(run_dir)}
    return {
        "schema": provenance.SCHEMA,
        "run": {**identity, "tracking_uri": tracking_uri, "run_id": run_id},
        "sources": {
            name: [origin.document() for origin in origins[name]]
            for name, spec in plan.sources.items()
            if spec is not None
        },
        "proofs": [proof.document() for proof in plan.proofs],
        "variables": {
            assignment.variable.name: _provenance(assignment, plan, origins)
            for assignment in plan.assignments
        },
    }


def _provenance(
    assignment: Assignment, plan: RestorationPlan, origins: Mapping[str, Sequence[Origin]]
) -> dict[str, Any]:
    source_tensor = assignment.source_tensor
    if source_tensor is None:
        return {"initializer": assignment.variable.initializer}
    source = plan.sources[source_tensor.source]
    assert source is not None, "a source tensor has a checkpoint"
    writers = {
        origin.run["run_id"] if origin.run else None for origin in origins[source_tensor.source]
    }
    document = {
        "source": source_tensor.source,
        "path": source.path,
        "tensors": list(source_tensor.names),
        "step": source.step,
        "digest": source.digest,
        "run_id": writers.pop() if len(writers) == 1 else None,
        "conversions": list(source_tensor.steps),
    }
    return {"source_tensor": document}


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
        "bytes": sum(tensor.bytes for tensor in source.tensors.values()),
        "unused": plan.unused[scaffold],
        "non_finite": "error" if scaffold in plan.finite else "warning",
        "restored": len(restored),
        "restored_bytes": sum(assignment.variable.tensor.bytes for assignment in restored),
    }


def _variable(assignment: Assignment, plan: RestorationPlan) -> dict[str, Any]:
    variable, source_tensor = assignment.variable, assignment.source_tensor
    origin = "model" if variable.is_of_model else "initializer"
    origin = "unknown" if assignment.scaffold in plan.unusable else origin
    return {
        **vars(variable.tensor),
        "state": variable.state.noun,
        "bytes": variable.tensor.bytes,
        "scaffold": assignment.scaffold,
        "origin": "checkpoint" if source_tensor else origin,
        "initializer": variable.initializer,
        "source_tensor": source_tensor
        and {
            "source": source_tensor.source,
            "tensors": [vars(tensor) for tensor in source_tensor.tensors],
            "conversions": source_tensor.steps,
        },
        "notes": assignment.notes,
        "trainable": variable.trainable,
        "frozen": variable.frozen,
        "freeze_until_step": assignment.freeze_until_step,
        "learning_rate_multiplier": assignment.learning_rate_multiplier,
        "partition": variable.partition and vars(variable.partition),
        "shared_by": variable.shared_by,
        "layer": variable.layer,
        "flattened": variable.flattened,
        "address": variable.address,
        "axes": variable.axes,
    }
