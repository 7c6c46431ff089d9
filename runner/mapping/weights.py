"""Which tensors of a checkpoint may be weights, and what the others are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.checkpoints.quantization import (
    REMEDY,
    any_quantization,
    is_code,
    is_plain_float,
    quantization,
)
from runner.checkpoints.reader import CheckpointSpec, TensorSpec, is_count, is_read
from runner.config.choices import WARM_STARTED
from runner.mapping.layouts import Shape
from runner.planning.variables import classify
from runner.rules.expressions import in_expression
from runner.rules.patterns import is_literal

_OPTIMIZER, _SLOT, _NUMBERS = "of an optimizer", "slots and averages of others", "not floats"
# Where Keras and Flax keep an optimizer's state.
_OF_OPTIMIZERS = ("optimizer/", "optimizer_weights/", "opt_state/")
_POWERS = re.compile(r"(.*/)?beta[12]_power(_\d+)?")
# The path that TensorFlow finds first for the variables of a Keras 3 model with an optimizer.
_TRAINED = "/_trainable_variables/"
_STEPS = ("_iterations", "iterations", "iteration", "iter")
_NORMED = re.compile(r"parametrizations\.(\w+)\.original[01]$|(?<=weight)_[gv]$")
_PLAIN = "save plain floats in their place"
_RENAMED = "save it under a name without {...}, \\1 and both kinds of quotes"
_DIRECTION = re.compile(r"parametrizations\.(\w+)\.original1$|(?<=weight)_v$")


class Unread(NamedTuple):
    """A tensor that is no weight that can be read: what it is, and what to do about it."""

    kind: str
    remedy: str


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint.

    Attributes:
      weights: name, or alias -> shape of those that may be weights.
      others: tensor -> what it is instead, which is no reason for doubt.
      codes: tensor -> what it is instead of a weight, where it may stand for one.
    """

    weights: Mapping[str, Shape]
    others: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, Unread] = field(default_factory=dict)


def sort_out(spec: CheckpointSpec, *, is_complex: bool = False) -> Tensors:
    """Sorts the tensors of a checkpoint; complex ones are weights only where variables are."""
    aliases = {name: alias for alias, name in spec.aliases.items()}
    optimizers = _optimizers({aliases.get(name, name): spec.tensors[name] for name in spec.tensors})
    layout = any_quantization(spec.tensors)
    weights: dict[str, Shape] = {}
    others: dict[str, str] = {}
    codes: dict[str, Unread] = {}
    for name, tensor in spec.tensors.items():
        alias = aliases.get(name, name)
        state = classify(alias, model=True)
        is_slot_of = alias.startswith(optimizers) and _TRAINED not in alias
        if is_slot_of or _POWERS.fullmatch(name):
            others[name] = _OPTIMIZER
        elif state not in WARM_STARTED:
            others[name] = state.noun
        elif is_slot(name, spec.tensors):
            others[name] = _SLOT
        elif is_plain_float(tensor.dtype) and ("complex" not in tensor.dtype or is_complex):
            if is_literal(alias) and in_expression(alias) is not None:
                weights[alias] = tensor.shape
            else:
                codes[name] = Unread("no rule can hold this name", _RENAMED)
        elif not is_read(tensor.dtype):
            codes[name] = Unread(f"{tensor.dtype}, which is not read", _PLAIN)
        elif "complex" in tensor.dtype:
            kind = f"{tensor.dtype}, which has no place in real variables"
            codes[name] = Unread(kind, _PLAIN)
        elif is_code(tensor.dtype) and (of := _kind(name, tensor, spec.tensors) or layout):
            codes[name] = Unread(f"{tensor.dtype} of quantized weights ({of})", REMEDY)
        else:
            others[name] = _NUMBERS
    return Tensors(_merged(weights), others, codes)


def is_slot(name: str, tensors: Mapping[str, object]) -> bool:
    """Returns whether a name extends another tensor's, as `kernel/Adam` does."""
    parts = name.split("/")
    return any("/".join(parts[:count]) in tensors for count in range(1, len(parts)))


def _optimizers(tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """Returns how names of the state of optimizers begin: they count their steps beside it."""
    counted = (
        name.rpartition("/")
        for name, tensor in tensors.items()
        if is_count(tensor) and name.rpartition("/")[2] in _STEPS
    )
    return (*_OF_OPTIMIZERS, *(f"{around}/" for around, _, _ in counted if around))


def _kind(name: str, tensor: TensorSpec, tensors: Mapping[str, TensorSpec]) -> str | None:
    """Returns the layout of codes in a weight's place; a narrow float can be nothing else."""
    return quantization(name, tensors) or ("a narrow float" if "float" in tensor.dtype else None)


def _merged(weights: Mapping[str, Shape]) -> dict[str, Shape]:
    """Joins the magnitude and direction of weight norm, which `torch` merges by itself."""
    merged: dict[str, Shape] = {}
    for name, shape in weights.items():
        whole, direction = _NORMED.sub(r"\1", name), _DIRECTION.sub(r"\1", name)
        if whole == name or whole in weights:
            merged[name] = shape
        elif direction != name:
            merged[direction] = shape
    return merged
