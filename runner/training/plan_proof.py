"""Proves the plan of a run in an eager model, before there is a run directory or afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.config.schema import RunConfig
from runner.errors import CheckpointError, Problem
from runner.graph.trained_model import initial_model
from runner.planning.comparison import Proof
from runner.planning.plan import RestorationPlan
from runner.proof.proving import prove
from runner.proof.reference import Reference, read_reference
from runner.restoration.eager import restore_model, unchanged
from runner.system.user_code import calling
from runner.training.first_values import start_of
from runner.training.run_sources import Sources


def proven(
    config: RunConfig, plan: RestorationPlan, sources: Sources, *, model: Any
) -> RestorationPlan:
    """Returns a plan with the proofs that its configuration asks for, and the problems of these.

    Where the plan has problems already, or a source is an experiment that is not trained yet,
    nothing is proven. `validate` refuses proofs of runs without a Keras model.

    Args:
      config: the configuration of the run.
      plan: its plan.
      sources: the checkpoints that it names.
      model: the run's Keras model, which keeps its values; None where it trains none.

    Raises:
      UserCodeError: when the model raises an error.
    """
    paths = {name: scaffold.proof for name, scaffold in config.scaffolds.items()}
    references: dict[str, Reference] = {}
    problems: list[Problem] = []
    for name, path in ({"": config.proof} | paths).items():
        if path is not None:
            with CheckpointError.within(_key(name), problems):
                references[name] = read_reference(path)
    plan = replace(plan, problems=(*plan.problems, *problems))
    restoring = [name for name in plan.sources if plan.restored(name)]
    missing = [name for name in restoring if name not in sources.origins()]
    if missing and references:
        note = f"not proven yet: the source of {', '.join(missing)} is still to be trained"
        return replace(plan, notes=(*plan.notes, note))
    if plan.problems or not references or model is None:
        return plan
    proofs: list[Proof] = []
    readers = {name: sources.open(name) for name in restoring}
    with unchanged(model.variables):
        restore_model(model, plan, readers)
        for name, reference in references.items():
            with (
                CheckpointError.within(_key(name), problems),
                calling("model", f"it was given {reference.path}"),
            ):
                proofs.append(prove(model, reference, plan=plan, scaffold=name))
    for proof in [proof for proof in proofs if not proof.agrees]:
        problem = proof.problem()
        delete = f"to train without a proof, delete the key: {_key(proof.scaffold)}=null"
        problems.append(replace(problem, remedy=f"{problem.remedy}; {delete}"))
    return replace(plan, problems=tuple(problems), proofs=tuple(proofs))


def _key(scaffold: str) -> str:
    """Returns the key that names a reference."""
    return f"scaffolds.{scaffold}.proof" if scaffold else "proof"


def prove_run(run: str, reference: str, scaffold: str = "") -> Proof:
    """Proves the plan of a run that has been trained, in a model with its first values.

    Args:
      run: its directory.
      reference: the file with what the source of its weights computes.
      scaffold: proves the part of this scaffold alone.

    Raises:
      RunnerError: when a file cannot be read, or the plan has problems.
      UserCodeError: when the model raises an error.
    """
    start, recorded = start_of(run), read_reference(reference)
    start.plan.require_sound()
    model = initial_model(start.config)
    restore_model(model, start.plan, start.readers)
    with calling("model"):
        return prove(model, recorded, plan=start.plan, scaffold=scaffold)
