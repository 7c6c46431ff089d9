"""Chooses the conversions that make a tensor fit its variable, or says why it does not fit."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runner.checkpoints.reader import TensorSpec, is_number
from runner.config.choices import ShapePolicy
from runner.config.schema import ScaffoldConfig, VocabularyConfig
from runner.config.spelling import override
from runner.errors import PlanError, Problem
from runner.restoration.conversions import (
    Cast,
    Combination,
    Conversion,
    PadOrSlice,
    Reshape,
    Slice,
    Transpose,
    VocabularyRemap,
    casts_freely,
    read_vocabulary,
    remap,
)
from runner.restoration.named_conversions import NAMED_CONVERSIONS, Target
from runner.restoration.patterns import PATTERN_MAPS, FirstMatch
from runner.restoration.variables import Partition, VariableSpec


@dataclass(frozen=True)
class SourceTensor:
    """The tensors of one checkpoint that give a variable its value, and the steps to it.

    Attributes:
      source: the scaffold in whose checkpoint it is, a key of `RestorationPlan.sources`.
      tensor: the tensor.
      conversions: the steps to the variable's value, in order; empty when it is taken as it is.
      others: further tensors of the same checkpoint that `combination` needs after `tensor`.
      combination: makes one tensor of `tensor` and `others`, before the conversions.
    """

    source: str
    tensor: TensorSpec
    conversions: tuple[Conversion, ...] = ()
    others: tuple[TensorSpec, ...] = ()
    combination: Combination | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its tensors, in the order in which `convert` takes their values."""
        return tuple(tensor.name for tensor in (self.tensor, *self.others))

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps from the tensors to the variable's value, in words and in order."""
        combined = (self.combination,) if self.combination else ()
        return tuple(map(str, (*combined, *self.conversions)))

    @property
    def needs_initial(self) -> bool:
        """Whether `convert` must be given the variable's initial value."""
        return any(step.needs_initial for step in self.conversions)

    def convert(
        self, values: Sequence[NDArray[Any]], initial: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Returns the variable's value from the values of the tensors called `names`.

        Raises:
          ValueError: when the values cannot be converted, e.g. leave the range of a cast.
        """
        (value,) = values if self.combination is None else (self.combination.apply(values),)
        for conversion in self.conversions:
            value = conversion.apply(value, initial if conversion.needs_initial else None)
        return value


@dataclass(frozen=True)
class Rules:
    """The rules for a variable: of `convert`, `transpose` and `vocabulary` the first that match.

    `name` is the variable's, or its owner's where it is a slot or an average, as `linear` says.
    """

    name: str
    linear: bool
    convert: str | None
    transpose: Sequence[int] | None
    vocabulary: VocabularyConfig | None


class Fitter:
    """Applies one scaffold's rules on shape, layout and dtype; reads each vocabulary file once.

    Raises:
      re.error: when a pattern is not valid.
    """

    def __init__(self, scaffold: str, config: ScaffoldConfig) -> None:
        self._scaffold, self._config = scaffold, config
        self._rules = {part: FirstMatch(getattr(config, part)) for part in PATTERN_MAPS}
        self._read = functools.cache(read_vocabulary)

    def unused(self) -> dict[str, tuple[str, ...]]:
        """Returns for `convert`, `transpose` and `vocabulary` the patterns that nothing used."""
        return {part: rules.unused() for part, rules in self._rules.items()}

    def rules(self, name: str, *, linear: bool) -> Rules:
        """Returns the rules for the variable `name`, or for a slot or an average of it."""
        values = {part: rules.find(name) for part, rules in self._rules.items()}
        return Rules(name, linear, **values)

    def names(self, rules: Rules, wanted: str) -> tuple[str, ...]:
        """Returns the names of the tensors needed for a variable whose renamed name is `wanted`.

        Raises:
          ValueError: when that name is not what the named conversion asks for.
        """
        if rules.convert is None:
            return (wanted,)
        return NAMED_CONVERSIONS[rules.convert].names(rules.name, wanted)

    def fit(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec], rules: Rules
    ) -> tuple[SourceTensor | None, tuple[str, ...]]:
        """Returns the piece and notes; no piece where `shape: init` keeps the initial value.

        The tensors are in the order of `names`. For a part of a variable the whole is fitted and
        then sliced.

        Raises:
          ValueError: when a rule cannot convert the tensors.
          PlanError: when the tensors do not fit.
        """
        combination, steps, shape = self._layout(variable, tensors, rules)
        last: Conversion | None = self._vocabulary(rules, shape, variable.full_shape)
        after = shape if last is None else last.shape(shape)
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
        cast, notes = self._cast(variable, tensors)
        conversions = (*steps, *cast, *([last] if last else []))
        first, *others = tensors
        return SourceTensor(self._scaffold, first, conversions, tuple(others), combination), notes

    def _layout(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec], rules: Rules
    ) -> tuple[Combination | None, list[Conversion], tuple[int, ...]]:
        shapes = [tensor.shape for tensor in tensors]
        steps: list[Conversion] = []
        combination = None
        if rules.convert is not None:
            conversion = NAMED_CONVERSIONS[rules.convert]
            combination = conversion.combination if len(tensors) > 1 else None
            target = Target(rules.name, variable.full_shape, rules.linear)
            steps += conversion.build(target, shapes)
        if rules.transpose is not None:
            steps.append(Transpose(tuple(rules.transpose)))
        shape = shapes[0] if combination is None else combination.shape(shapes)
        for step in steps:
            shape = step.shape(shape)
        return combination, steps, shape

    def _resize(self, shape: tuple[int, ...], new: tuple[int, ...]) -> Conversion | None:
        policy = self._config.shape
        if policy is ShapePolicy.reshape and math.prod(shape) == math.prod(new):
            return Reshape(new)
        if policy is ShapePolicy.pad_or_slice and len(shape) == len(new):
            return PadOrSlice(shape, new, (0,) * len(shape))
        return None

    def _vocabulary(
        self, rules: Rules, shape: tuple[int, ...], new: tuple[int, ...]
    ) -> VocabularyRemap | None:
        config = rules.vocabulary
        if config is None:
            return None
        if not -len(shape) <= config.axis < len(shape) or len(shape) != len(new):
            raise ValueError(f"{list(shape)} and {list(new)} have no common axis {config.axis}")
        axis = config.axis % len(shape)
        old, new_tokens = self._read(config.old), self._read(config.new)
        return remap(old, new_tokens, axis, old_size=shape[axis], new_size=new[axis])

    def _cast(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec]
    ) -> tuple[tuple[Conversion, ...], tuple[str, ...]]:
        new = variable.tensor.dtype
        old = next((tensor.dtype for tensor in tensors if tensor.dtype != new), new)
        if old == new:
            return (), ()
        numbers = is_number(old) and is_number(new)
        if casts_freely(old, new) or (numbers and self._config.cast):
            return (Cast(new),), (f"{old} cast to {new}",)
        key = f"scaffolds.{self._scaffold}"
        cause = f"{old} and {new} do not convert into each other"
        remedy = "exclude the variables, or rename them to other tensors"
        if numbers:
            cause = f"a cast from {old} to {new} may lose values"
            remedy = f"allow it by ++{key}.cast=true, or exclude the variables"
        state = f"{key}: {variable.full_name} is {new}, but its tensor is {old}"
        raise PlanError(Problem(state, cause, remedy))

    def _shape(self, variable: VariableSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> Problem:
        key, new, name = f"scaffolds.{self._scaffold}", variable.full_shape, variable.full_name
        same_rank, same_size = len(shape) == len(new), math.prod(shape) == math.prod(new)
        policies = {"reshape": same_size, "pad_or_slice": same_rank, "init": True}
        choices = [f"++{key}.shape={policy}" for policy, fits in policies.items() if fits]
        if len(shape) > 1 and sorted(shape) == sorted(new):
            choices.insert(0, override(f"{key}.transpose", {name: _axes(shape, new)}) or "")
        after = "" if shape == tensor.shape else f", after conversion {list(shape)}"
        return Problem(
            f"{key}: {name} has shape {list(new)}, but its tensor {tensor.name} has "
            f"{list(tensor.shape)}{after}",
            "a tensor restores a variable of the same shape",
            "change the model, convert the tensor by transpose, convert or vocabulary, or exclude "
            f"it in {key}.variables.exclude",
            tuple(filter(None, choices)),
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
