"""Decides a correspondence that names propose, by a reference of what the source computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import keras

from runner.checkpoints.reader import CheckpointReader
from runner.errors import ConfigError, described_type
from runner.mapping.candidates import constant
from runner.mapping.correspondence import Computed, Correspondence, Pair
from runner.mapping.dataflow import trace
from runner.mapping.decision import Decision
from runner.mapping.decisions import Decisions
from runner.mapping.layouts import Shape, Variable, channels_first, ways
from runner.mapping.source import RecordedCheckpoint
from runner.mapping.trials import Trials
from runner.mapping.walk import Walk
from runner.planning.comparison import compare
from runner.planning.model_variables import keras_variables
from runner.proof.feeding import array_of, by_name, model_inputs, recorded_names
from runner.proof.precision import full_precision
from runner.proof.reference import Reference
from runner.restoration.eager import unchanged

# How many candidates of an undecided variable are listed.
_MOST_LISTED = 8


def decide(
    model: Any,
    reference: Reference,
    correspondence: Correspondence,
    *,
    reader: CheckpointReader,
    tensors: Mapping[str, Shape],
    facts: Mapping[str, Mapping[str, Any]],
) -> Correspondence:
    """Decides which tensors are which variables; the model has its own values afterwards.

    Args:
      model: a built Keras model.
      reference: what the source of the checkpoint computes.
      correspondence: what names propose.
      reader: the checkpoint.
      tensors: name -> shape of the tensors that may be weights.
      facts: variable -> facts of its layer, see `layer_facts`.

    Raises:
      ConfigError: when the model is not Keras's.
      CheckpointError: when the model takes other inputs or gives other outputs than were recorded.
    """
    if not isinstance(model, keras.Layer):
        state = f"the model is {described_type(model)}"
        raise ConfigError.of(state, "a reference is compared with a Keras model's layers")
    inputs, everything = model_inputs(model, reference), keras_variables(model)
    known = _variables(everything, facts, tensors)
    held = {name: everything[name] for name in known}
    constants = {name: step for name, step in correspondence.constants.items() if name in known}
    correspondence = replace(correspondence, constants=constants)
    source = RecordedCheckpoint(reader, tensors, reference)

    def forward() -> Any:
        return model(inputs, training=False)

    with unchanged(everything.values()), full_precision():
        calls, read_by_outputs = trace(model, held, forward)
        decisions = Decisions(
            calls, read_by_outputs, source, variables=known, proposed=correspondence
        )
        trials = Trials(calls, source, {name: (known[name], held[name]) for name in known})
        outputs = partial(_outputs, model, reference)
        Walk(model, forward, source, decisions=decisions, trials=trials, outputs=outputs).run()
    return _decided(decisions, correspondence, [*facts], tensors)


def _variables(
    held: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Shape]
) -> dict[str, Variable]:
    """Returns the variables to decide on: of those that do not train, such that tensors fit.

    A model computes the others when it is built, unless a layer is frozen.
    """
    known = {name: _variable(name, held[name], some) for name, some in facts.items()}
    return {
        name: variable
        for name, variable in known.items()
        if held[name].trainable
        or constant(variable)
        or any(ways(variable, shape) for shape in tensors.values())
    }


def _variable(name: str, variable: Any, facts: Mapping[str, Any]) -> Variable:
    flattened = channels_first(facts["flattened"])
    return Variable(name, tuple(variable.shape), facts["layer"], facts["axes"], flattened)


def _outputs(model: Any, reference: Reference, outputs: Any) -> float:
    """Returns how far outputs are from the recorded ones; 0 where there are none."""
    values = by_name(outputs)
    names = getattr(model, "output_names", ())
    pairs = recorded_names("outputs", reference, values, names)
    return max(
        (
            compare(recorded, name, array_of(values[name]), reference.outputs[recorded], 0).relative
            for name, recorded in pairs.items()
        ),
        default=0.0,
    )


def _decided(
    decisions: Decisions,
    proposed: Correspondence,
    variables: list[str],
    tensors: Mapping[str, Shape],
) -> Correspondence:
    taken = {
        name: _pair(name, decision, decisions, proposed)
        for at, decision in decisions.made.items()
        for name in decisions.calls[at].variables
    }
    # What no call reads is as names propose it.
    pairs = {name: pair for name, pair in taken.items() if pair.taken.tensors}
    pairs |= {name: pair for name, pair in proposed.pairs.items() if name not in taken}
    constants = {name: pair.taken.step for name, pair in taken.items() if name not in pairs}
    constants |= {n: step for n, step in proposed.constants.items() if n not in taken}
    decided = {name for name, pair in (pairs | taken).items() if pair.is_decided}
    return Correspondence.of(
        variables,
        tensors,
        pairs=pairs,
        constants=constants,
        layout=proposed.layout,
        unread=decisions.unread(),
        undecided=tuple(n for n in (*pairs, *constants) if n not in decided),
    )


def _pair(name: str, decision: Decision, decisions: Decisions, proposed: Correspondence) -> Pair:
    taken = decision.candidate.taken[name]
    if decision.by:
        reader = decision.by if decision.by != decisions.path(decision.call) else ""
        computed = Computed(decision.record, decision.relative, decision.next, reader)
        return Pair(name, taken, (), is_decided=True, computed=computed)
    known = proposed.pairs.get(name)
    reason = "not decided by values"
    if known is not None and known.is_certain and known.taken == taken:
        return Pair(name, taken, (*known.reasons, reason))
    others = (option.taken[name] for option in decisions.in_order(decision.call)[:_MOST_LISTED])
    return Pair(name, taken, (reason,), tuple(dict.fromkeys((taken, *others))))
