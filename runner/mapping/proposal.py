"""`propose`: the rules that bring checkpoints into a model, as scaffolds, and their plan."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.config.choices import WARM_STARTED
from runner.console import plural, some_of
from runner.errors import ConfigError, Problem
from runner.mapping.correspondence import Correspondence, correspond, decided, doubted, guessed
from runner.mapping.counted import by_position, known_by
from runner.mapping.layouts import Shape, channels_first
from runner.mapping.names import require_used, tokens
from runner.mapping.numbered import words_for_numbers
from runner.mapping.text import document
from runner.mapping.values import decide
from runner.mapping.weights import sort_out
from runner.mapping.written_rules import Written, write
from runner.planning.comparison import Proof
from runner.planning.model_variables import (
    eager_variables,
    keras_variables,
    layer_facts,
    tensorflow_variable,
)
from runner.planning.places import WeightsLayout
from runner.planning.report import model_counts
from runner.planning.variables import classify
from runner.planning.weights_layout import dtype_name, places, weights_layout
from runner.proof.proving import prove
from runner.proof.reference import Reference, read_reference
from runner.restoration import eager
from runner.restoration.eager import unchanged
from runner.restoration.eager_plan import WarmStartPlan

# The formats that keep the order in which a model defines its layers.
_ORDERED = ("PyTorch file",)


@dataclass(frozen=True)
class Proposal:
    """Rules for a model and checkpoints; prints as YAML to paste.

    Attributes:
      scaffolds: name -> keys of the scaffold, as `runner.plan` and `runner.warm_start` take them.
      correspondences: scaffold -> which tensor is which variable, decided or not.
      plan: the plan with these scaffolds; variables that have no rule are among its problems.
      proof: the model with these values, and the nearest for variables that are open, compared
        with the reference; None without one, or where a plan refuses that.
      holds: whether a plan carries the rules out, once those that are open have rules too, and they
        leave no weight out that the file holds as codes.
    """

    scaffolds: Mapping[str, Mapping[str, Any]]
    correspondences: Mapping[str, Correspondence]
    plan: WarmStartPlan
    proof: Proof | None = None
    holds: bool = True

    @property
    def is_certain(self) -> bool:
        """Whether every variable is decided, and what is left over has a reason.

        Shapes that leave one choice decide, and a reference; names alone do not. Tensors that no
        variable takes have a reason where a proof agrees without them, and so have variables
        without a tensor that do not train then, or that no output reads.
        """
        return not self.plan.problems and not [*self.doubts()]

    def doubts(self) -> Iterator[Problem]:
        """Yields what keeps the proposal from being certain, beside the problems of its plan."""
        some = [*self.correspondences.values()]
        named = [pair for one in some for pair in one.pairs.values() if not pair.is_decided]
        record = "record what the source computes, and give it by --reference: docs/how-to/prove.md"
        is_named, total = some[-1].undecided is None, model_counts(self.plan)["variables"]
        if undecided := some[-1].undecided:
            state = f"{plural(len(undecided), 'variable')} of {total}"
            cause = "no recorded value tells one way from another, or the proof doubts them"
            verb = "is" if len(undecided) == 1 else "are"
            yield Problem(f"{state} {verb} not decided: {some_of(undecided, 3)}", cause)
        elif named and is_named:
            state = f"{plural(len(named), 'variable')} of {total}"
            cause = "names can be wrong: it is a proposal"
            verb = "has a tensor by its name" if len(named) == 1 else "have a tensor by their names"
            yield Problem(f"{state} {verb} alone", cause, record)
        constant = [name for one in some for name in one.constants]
        if constant and is_named:
            cause = "zeros() or ones() stands for what the file lacks"
            yield Problem(f"no tensor is {some_of(constant, 3)}", cause, record)
        reasons = {*some[-1].unread}
        if self.proof is not None and self.proof.agrees:
            # What a model computes when it is built, such as rotary frequencies.
            held = (assignment.variable for assignment in self.plan.assignments)
            reasons |= {variable.name for variable in held if not variable.trainable}
        if left := [name for name in some[-1].left if name not in reasons]:
            yield Problem(
                f"no tensor fits {some_of(left, 3)}", "", "they keep their initial values"
            )
        codes = {name: code for one in some for name, code in one.codes.items()}
        for remedy in dict.fromkeys(code.remedy for code in codes.values()):
            unread = {name: code.kind for name, code in codes.items() if code.remedy == remedy}
            cause = "; ".join(sorted({*unread.values()}))
            yield Problem(f"{some_of([*unread], 3)} may hold weights", cause, remedy)
        unused = [name for one in some for name in one.unused]
        if unused and self.proof is None:
            yield Problem(f"no variable takes {some_of(unused, 3)}", "", record if is_named else "")
        if self.proof is not None and not self.proof.agrees:
            yield self.proof.problem()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return document(self.scaffolds if self.holds else {}, self.correspondences)


def propose(
    model: Any,
    checkpoint: str | bytes | os.PathLike[str] | Sequence[str | bytes | os.PathLike[str]],
    *,
    hints: Mapping[str, str] | None = None,
    reference: str | Path | Reference | None = None,
) -> Proposal:
    """Finds which tensors of checkpoints are which variables of a model, and writes it as rules.

    Names propose; a reference decides, by what the modules of the source computed. The model has
    its own values afterwards.

    Args:
      model: a built Keras model or layer, a `tf.Module`, or a mapping name -> variable.
      checkpoint: the path of a checkpoint of any format, or several; of these, each gives values to
        variables for which those before it have none.
      hints: words in names of tensors -> words in names of variables, such as `{"q": "query"}`.
      reference: an `.npz` file of what the source computes, as `prove` takes it. It needs a Keras
        model, and one checkpoint.

    Raises:
      ConfigError: when the model has no variables, a hint changes nothing, or a reference cannot be
        compared with the model.
      CheckpointError: when a checkpoint or the reference cannot be read.
    """
    held = eager_variables(model)
    variables = {
        name: tuple(tensorflow_variable(variable).shape.as_list())
        for name, variable in held.items()
        if classify(name, model=True) in WARM_STARTED
    }
    dtypes = {name: dtype_name(variable) for name, variable in held.items()}
    # Tensors that are weights are floats; places in a sequence, for example, have none.
    integers = tuple(name for name in variables if "int" in dtypes[name] or "bool" in dtypes[name])
    free = {name: shape for name, shape in variables.items() if name not in integers}
    facts = {name: known for name, known in layer_facts(model).items() if name in free}
    layers = {name: known["layer"] for name, known in facts.items()}
    flattened = {name: channels_first(known["flattened"]) for name, known in facts.items()}
    if isinstance(checkpoint, str | bytes | os.PathLike):
        checkpoint = [checkpoint]
    paths = [os.fsdecode(path) for path in checkpoint]
    if reference is not None:
        if len(paths) > 1:
            state, cause = f"there are {len(paths)} checkpoints", "a reference is of one source"
            raise ConfigError.of(state, cause, "map them one after another")
        if not isinstance(reference, Reference):
            reference = read_reference(str(reference))
    is_keras = isinstance(model, keras.Layer)
    layout = weights_layout(model, keras_variables(model)) if is_keras else WeightsLayout({}, {})
    is_complex = any("complex" in dtype for dtype in dtypes.values())
    files: dict[str, str] = {}
    correspondences: dict[str, Correspondence] = {}
    named = list[str]()
    for path in paths:
        ((resolved,), name) = checkpoint_paths(path, "latest"), _free_name(path, files)
        files[name], reader = path, open_reader(resolved)
        spec = reader.spec()
        sorted_out = sort_out(spec, is_complex=is_complex)
        tensors = sorted_out.weights
        named += tensors
        if len(files) == len(paths):
            require_used(hints or {}, named, variables)
        known, words = _known(spec, layout, variables, tensors)
        correspondence = correspond(
            free,
            tensors,
            layers=layers,
            ordered=spec.format in _ORDERED,
            file_format=spec.format,
            flattened=flattened,
            words=words,
            known=known,
            hints=hints,
        )
        correspondence = with_types(correspondence, spec)
        if reference is not None:
            correspondence = decide(
                model, reference, correspondence, reader=reader, tensors=tensors, facts=facts
            )
        left = (*correspondence.left, *integers)
        others, codes = sorted_out.others, sorted_out.codes
        correspondences[name] = replace(correspondence, left=left, others=others, codes=codes)
        free = {variable: free[variable] for variable in correspondence.left}

    def scaffolds(known: Mapping[str, Correspondence]) -> dict[str, dict[str, Any]]:
        return {
            name: _scaffold(files[name], write(one, variables, layers), one, variables)
            for name, one in known.items()
        }

    plan = nearest = eager.plan(model, proposed := scaffolds(correspondences))
    # The codes of a variable without a tensor would be left out.
    holds = not any(one.codes and one.left for one in correspondences.values())
    if plan.problems:
        sure = {name: decided(one) for name, one in correspondences.items()}
        holds = holds and all(one.pairs for one in sure.values())
        holds = holds and not eager.plan(model, scaffolds(sure)).problems
        guesses = {name: guessed(one) for name, one in correspondences.items()}
        nearest = eager.plan(model, scaffolds(guesses))
    proof = None
    if reference is not None and not nearest.problems:
        proof = _proven(model, nearest, reference, readers={name: reader})
        correspondences[name] = doubted(correspondences[name], proof.doubtful)
    return Proposal(proposed, correspondences, plan, proof, holds)


def _known(
    spec: CheckpointSpec,
    layout: WeightsLayout,
    variables: Mapping[str, Shape],
    tensors: Mapping[str, Shape],
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns how variables and tensors are known, where Keras's counted names are no evidence."""
    words = words_for_numbers(tensors, layout, variables)
    if not (spec.layers or spec.order):
        return by_position(variables, layout.automatic), words
    words = {name: words.get(name, name) for name in tensors}
    names = {name: alias for alias, name in spec.aliases.items()}
    held = {
        name: names.get(tensor, tensor) if tensor else tensor
        for name, tensor in places(spec, layout).items()
    }
    return known_by(variables, words, automatic=layout.automatic, places=held)


def _proven(
    model: Any,
    plan: WarmStartPlan,
    reference: Reference,
    *,
    readers: Mapping[str, CheckpointReader],
) -> Proof:
    """Proves a model with the values of a plan; it has its own values afterwards."""
    with unchanged(keras_variables(model).values()):
        eager.restore_model(model, plan, readers)
        return prove(model, reference, plan=plan)


def _free_name(path: str, taken: Mapping[str, object]) -> str:
    file = os.path.basename(path.rstrip("/")).partition(".")[0]
    stem = re.sub(r"\W+", "_", file).strip("_") or "pretrained"
    return next(
        name
        for at in range(len(taken) + 1)
        if (name := f"{stem}_{at}" if at else stem) not in taken
    )


def _scaffold(
    path: str, written: Written, correspondence: Correspondence, variables: Mapping[str, object]
) -> dict[str, Any]:
    """Returns the keys of a scaffold."""
    claimed = {*correspondence.pairs, *correspondence.constants}
    others = [name for name in variables if name not in claimed]
    if not others:
        selected = {"include": ["*"]}
    elif {*others} == {*correspondence.left}:
        selected = {"include": ["*"], "exclude": cover(others, claimed)}
    else:
        selected = {"include": cover(claimed, others)}
    keys: dict[str, Any] = {"checkpoint": path, "variables": selected}
    if written.convert:
        keys["convert"] = dict(written.convert)
    if written.rules:
        keys["rules"] = dict(written.rules)
    return keys


def with_types(correspondence: Correspondence, spec: CheckpointSpec) -> Correspondence:
    """Adds the one row of token types, which BERT's kin have, where the model has no such table."""
    rows = [
        name
        for name in correspondence.unused
        if "segment" in tokens(name) and spec.tensors[name].shape[:1] == (1,)
    ]
    tables = [name for name in correspondence.pairs if {"position", "embedding"} <= {*tokens(name)}]
    if len(rows) != 1 or len(tables) != 1:
        return correspondence
    pair = correspondence.pairs[tables[0]]
    taken = replace(pair.taken, tensors=(*pair.taken.tensors, rows[0]))
    reasons = (*pair.reasons, "all tokens are of the one type that the file has")
    pairs = {**correspondence.pairs, tables[0]: replace(pair, taken=taken, reasons=reasons)}
    return replace(
        correspondence,
        pairs=pairs,
        unused=tuple(name for name in correspondence.unused if name != rows[0]),
    )


def cover(names: Sequence[str] | set[str], others: Sequence[str] | set[str]) -> list[str]:
    """Returns the shortest patterns that match all of some names and none of others."""
    patterns: dict[str, None] = {}
    prefixes = {name[: cut.start() + 1] for name in others for cut in re.finditer("/", name)}
    for name in sorted(names):
        starts = (name[: cut.start() + 1] for cut in re.finditer("/", name))
        free = next((start for start in starts if start not in prefixes), None)
        patterns[name if free is None else f"{free}*"] = None
    return [*patterns]
