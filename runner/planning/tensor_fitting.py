"""Chooses the conversions that make a tensor fit its variable, or says why it does not fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.checkpoints.quantization import is_code
from runner.checkpoints.reader import TensorSpec, is_number, parse_dtype
from runner.config.choices import ShapePolicy
from runner.config.schema import ScaffoldConfig
from runner.config.spelling import override
from runner.errors import PlanError, Problem
from runner.planning.variables import Partition, VariableSpec
from runner.rules.combinations import Combination, Fill, Sum, WeightNorm
from runner.rules.conversions import (
    AddForgetBias,
    Cast,
    Conversion,
    PadOrSlice,
    Reshape,
    Slice,
    casts_freely,
    is_float,
)
from runner.rules.expressions import Expression
from runner.rules.resampling import Interpolate, Reduce, Scale
from runner.rules.source_tensors import SourceTensor
from runner.rules.steps import build_source_tensor
from runner.rules.target import ConvertedVariable
from runner.rules.vocabularies import VocabularyRemap


class TensorFitter:
    """Makes the tensors of one scaffold's checkpoint fit the variables."""

    def __init__(self, scaffold: str, config: ScaffoldConfig) -> None:
        self._scaffold, self._config = scaffold, config

    def fit(
        self,
        variable: VariableSpec,
        tensors: Sequence[TensorSpec],
        expression: Expression,
        *,
        target: ConvertedVariable,
    ) -> tuple[SourceTensor | None, tuple[str, ...]]:
        """Returns the source tensor and notes; none where `shape: init` keeps the initial value.

        The tensors are in the order of `names_in`. For a part of a variable the whole is fitted and
        then sliced.

        Raises:
          ValueError: when a rule cannot convert the tensors.
          PlanError: when the tensors do not fit.
        """
        source_tensor = build_source_tensor(expression, self._scaffold, target, iter(tensors))
        is_widened = _computes(source_tensor) and _is_wider(variable.tensor.dtype, tensors)
        if is_widened:
            source_tensor = _cast_first(source_tensor, Cast(variable.tensor.dtype))
        steps, last, after = [*source_tensor.conversions], None, source_tensor.shape
        if steps and isinstance(steps[-1], VocabularyRemap):
            last = steps.pop()
        shape = replace(source_tensor, conversions=tuple(steps)).shape if last else after
        if steps and any(step.needs_initial for step in steps):
            raise ValueError("the rows of new tokens are known at the end alone: move tokens last")
        if after != variable.full_shape:
            if self._config.shape is ShapePolicy.init:
                return None, (f"{tensors[0].name} has shape {list(after)}: initialised",)
            resize = self._resize(shape, variable.full_shape) if last is None else None
            if resize is None:
                raise PlanError(self._shape(variable, tensors[0], after))
            if isinstance(resize, Reshape):
                steps.append(resize)
            else:
                last = resize
        if variable.partition is not None:
            parts, last = _part(variable.partition, variable.tensor.shape, shape, last)
            steps += parts
        cast, notes = self._cast(variable, tensors, source_tensor)
        cast = () if is_widened else cast
        conversions = (*steps, *cast, *([last] if last else []))
        fitted = conversions == source_tensor.conversions
        return source_tensor if fitted else replace(source_tensor, conversions=conversions), notes

    def _resize(self, shape: tuple[int, ...], new: tuple[int, ...]) -> Conversion | None:
        policy = self._config.shape
        if policy is ShapePolicy.reshape and math.prod(shape) == math.prod(new):
            return Reshape(new)
        if policy is ShapePolicy.pad_or_slice and len(shape) == len(new):
            return PadOrSlice(shape, new, (0,) * len(shape))
        return None

    def _cast(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec], source_tensor: SourceTensor
    ) -> tuple[tuple[Conversion, ...], tuple[str, ...]]:
        new = variable.tensor.dtype
        others = dict.fromkeys(tensor.dtype for tensor in tensors if tensor.dtype != new)
        if not others:
            is_filled = new != _FILLED and any(
                isinstance(step, Fill) for step in _steps_of(source_tensor)
            )
            return (Cast(new),) * is_filled, ()
        is_scaled = any(isinstance(step, Scale) for step in _steps_of(source_tensor))
        allowed = {
            old for old in others if self._may_cast(old, new) or (is_scaled and is_code(old))
        }
        old = next((old for old in others if old not in allowed), "")
        if not old:
            return (Cast(new),), (f"{', '.join(others)} cast to {new}",)
        numbers = is_number(old) and is_number(new)
        key = f"scaffolds.{self._scaffold}"
        cause = f"{old} and {new} do not convert into each other"
        remedy = "exclude the variables, or rename them to other tensors"
        if numbers:
            cause = f"a cast from {old} to {new} may lose values"
            remedy = f"allow it by ++{key}.cast=true, or exclude the variables"
        state = f"{key}: {variable.full_name} is {new}, but its tensor is {old}"
        raise PlanError.of(state, cause, remedy)

    def _may_cast(self, old: str, new: str) -> bool:
        numbers = is_number(old) and is_number(new)
        return casts_freely(old, new) or (numbers and self._config.cast)

    def _shape(self, variable: VariableSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> Problem:
        key, new, name = f"scaffolds.{self._scaffold}", variable.full_shape, variable.full_name
        same_rank, same_size = len(shape) == len(new), math.prod(shape) == math.prod(new)
        policies = {"reshape": same_size, "pad_or_slice": same_rank, "init": True}
        choices = [f"++{key}.shape={policy}" for policy, fits in policies.items() if fits]
        if len(shape) > 1 and sorted(shape) == sorted(new):
            choices.insert(0, override(f"{key}.transpose", {name: _axes(shape, new)}) or "")
        if len(new) > 2 and (new[-1] * new[-2], 1, *new[:-2]) == tensor.shape:
            rule = {name: f"{tensor.name} | depthwise"}
            choices.insert(0, override(f"{key}.rules", rule) or "")
        after = "" if shape == tensor.shape else f", after conversion {list(shape)}"
        return Problem(
            f"{key}: {name} has shape {list(new)}, but its tensor {tensor.name} has "
            f"{list(tensor.shape)}{after}",
            "a tensor restores a variable of the same shape",
            "change the model, convert the tensor by rules, transpose or convert, or exclude "
            f"it in {key}.variables.exclude",
            tuple(filter(None, choices)),
        )


# The type of constants.
_FILLED = "float32"
# What computes, and so rounds to the type that it computes in; all others move values.
_COMPUTING = (AddForgetBias, Interpolate, Reduce, Scale, Sum, WeightNorm)


def _steps_of(source_tensor: SourceTensor) -> Iterator[Conversion | Combination]:
    """Yields all combinations and conversions of a source tensor and its operands."""
    yield from (part for operand in source_tensor.operands for part in _steps_of(operand))
    if source_tensor.combination is not None:
        yield source_tensor.combination
    yield from source_tensor.conversions


def _computes(source_tensor: SourceTensor) -> bool:
    return any(isinstance(part, _COMPUTING) for part in _steps_of(source_tensor))


def _is_wider(new: str, tensors: Sequence[TensorSpec]) -> bool:
    """Returns whether a type and the types of all tensors are floats, and it has the most bits."""
    types = [parse_dtype(name) for name in (new, *(t.dtype for t in tensors)) if is_number(name)]
    if len(types) <= len(tensors) or not all(map(is_float, types)):
        return False
    return all(types[0].itemsize > old.itemsize for old in types[1:])


def _cast_first(source_tensor: SourceTensor, cast: Cast) -> SourceTensor:
    """Returns a source tensor that computes in the type of a cast."""
    if source_tensor.tensor is not None:
        return replace(source_tensor, conversions=(cast, *source_tensor.conversions))
    return replace(
        source_tensor, operands=tuple(_cast_first(part, cast) for part in source_tensor.operands)
    )


def _axes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Returns axes that turn one shape into the other; for convolution kernels the usual ones."""
    usual = (*range(2, len(old)), 1, 0)
    orders = itertools.chain([usual], itertools.permutations(range(len(old))))
    return next(axes for axes in orders if tuple(old[axis] for axis in axes) == new)


def _part(
    partition: Partition, size: tuple[int, ...], shape: tuple[int, ...], last: Conversion | None
) -> tuple[list[Conversion], Conversion | None]:
    """Returns the steps, and the last one, that give a part of a variable instead of the whole.

    The part has the shape `size`; `last`, if any, would give the whole from a tensor of `shape`.
    """
    if isinstance(last, PadOrSlice):
        return [], PadOrSlice(shape, size, partition.offset)
    if isinstance(last, VocabularyRemap):
        # Along the tokens' axis the part takes what it needs out of the whole tensor.
        axis = last.axis
        offset, block = list(partition.offset), list(size)
        offset[axis], block[axis] = 0, shape[axis]
        moved = last.part(partition.offset[axis], size[axis])
        return [Slice(tuple(offset), tuple(block))], moved
    return [Slice(partition.offset, size)], None
