"""Decides by which conversions a tensor fits its variable, or why it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import ShapePolicy
from runner.config.hydra_grammar import override
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration import dtypes
from runner.restoration.conversions import (
    Cast,
    Combination,
    Conversion,
    PadOrSlice,
    Reshape,
    Slice,
    Transpose,
)
from runner.restoration.layouts import NAMED_CONVERSIONS, Target
from runner.restoration.patterns import FirstMatch
from runner.restoration.plan import SourceTensor
from runner.restoration.variables import Partition, VariableSpec
from runner.restoration.vocabulary import VocabularyRemap, remap

ReadVocabulary = Callable[[str], Sequence[str]]
PATTERN_MAPS = ("convert", "transpose", "vocabulary")


@dataclass(frozen=True)
class Rules:
    """The patterns of one variable: the keys that its name finds in the scaffold's mappings."""

    convert: str | None
    transpose: str | None
    vocabulary: str | None


class MisfitError(Exception):
    """A tensor does not fit its variable.

    Attributes:
      kind: groups problems that are told together, e.g. `shape`.
      problem: what to tell of this one.
    """

    def __init__(self, kind: str, problem: Problem) -> None:
        super().__init__(kind, problem)
        self.kind, self.problem = kind, problem


class Fitter:
    """Applies one scaffold's rules on shape, layout and dtype."""

    def __init__(self, scaffold: str, config: ScaffoldConfig, vocabulary: ReadVocabulary) -> None:
        """Compiles the patterns.

        Args:
          scaffold: its name.
          config: its configuration.
          vocabulary: reads a vocabulary file; each is read once.

        Raises:
          re.error: when a pattern is not valid.
        """
        self._scaffold, self._config, self._read = scaffold, config, vocabulary
        self.patterns = {key: FirstMatch(getattr(config, key)) for key in PATTERN_MAPS}
        self._tokens: dict[str, Sequence[str]] = {}

    def rules(self, name: str) -> Rules:
        """Returns the rules for the variable `name`, its owner's for a slot or an average."""
        return Rules(*(self.patterns[key].find(name) for key in PATTERN_MAPS))

    def knows(self, rules: Rules) -> bool:
        """Returns whether there is a conversion of the name that the rules give, if any."""
        return rules.convert is None or self._config.convert[rules.convert] in NAMED_CONVERSIONS

    def names(self, rules: Rules, leaf: str, wanted: str) -> tuple[str, ...]:
        """Returns the tensors needed, where the renamed name is `wanted`.

        Raises:
          ValueError: when that name is not what the named conversion asks for.
        """
        if rules.convert is None:
            return (wanted,)
        return NAMED_CONVERSIONS[self._config.convert[rules.convert]].names(leaf, wanted)

    def fit(
        self,
        variable: VariableSpec,
        tensors: Sequence[TensorSpec],
        rules: Rules,
        target: Target,
    ) -> tuple[SourceTensor | None, tuple[str, ...]]:
        """Returns the piece and notes; no piece where `shape: init` leaves the initializer.

        Args:
          variable: the variable; of a part the whole is fitted and then sliced.
          tensors: the tensors, in the order of `names`.
          rules: its rules.
          target: what named conversions know of it.

        Raises:
          MisfitError: when the tensors do not fit.
        """
        try:
            combination, steps, shape = self._layout(tensors, rules, target)
            moved = self._vocabulary(rules, shape, variable.full_shape)
        except ValueError as error:
            raise MisfitError("layout", self._no_layout(variable, tensors, error)) from error
        last: Conversion | None = moved
        after = shape if moved is None else moved.shape(shape)
        new = variable.full_shape
        if after != new:
            policy = self._config.shape
            if policy is ShapePolicy.init:
                return None, (f"{tensors[0].name} has shape {list(after)}: initialised",)
            if policy is ShapePolicy.reshape and math.prod(after) == math.prod(new):
                steps.append(Reshape(new))
                shape = new
            elif policy is ShapePolicy.pad_or_slice and len(shape) == len(new) and moved is None:
                last = PadOrSlice(shape, new, (0,) * len(shape))
            else:
                raise MisfitError("shape", self._shape(variable, tensors[0], after))
        if variable.partition is not None:
            parts, last = _part(variable.partition, variable.tensor.shape, shape, last)
            steps += parts
        cast, notes = self._cast(variable, tensors)
        conversions = (*steps, *cast, *([last] if last else []))
        piece = SourceTensor(
            self._scaffold, tensors[0], conversions, tuple(tensors[1:]), combination
        )
        return piece, notes

    def _layout(
        self, tensors: Sequence[TensorSpec], rules: Rules, target: Target
    ) -> tuple[Combination | None, list[Conversion], tuple[int, ...]]:
        shapes = [each.shape for each in tensors]
        steps: list[Conversion] = []
        combination = None
        if rules.convert is not None:
            layout = NAMED_CONVERSIONS[self._config.convert[rules.convert]].build(target, shapes)
            steps, combination = list(layout.conversions), layout.combination
        if rules.transpose is not None:
            steps.append(Transpose(tuple(self._config.transpose[rules.transpose])))
        shape = shapes[0] if combination is None else combination.shape(shapes)
        for step in steps:
            shape = step.shape(shape)
        return combination, steps, shape

    def _vocabulary(
        self, rules: Rules, shape: tuple[int, ...], new: tuple[int, ...]
    ) -> VocabularyRemap | None:
        if rules.vocabulary is None:
            return None
        config = self._config.vocabulary[rules.vocabulary]
        if not -len(shape) <= config.axis < len(shape) or len(shape) != len(new):
            raise ValueError(f"{list(shape)} and {list(new)} have no common axis {config.axis}")
        axis = config.axis % len(shape)
        old_tokens, new_tokens = self._load(config.old), self._load(config.new)
        return remap(old_tokens, new_tokens, axis, shape[axis], new[axis])

    def _load(self, path: str) -> Sequence[str]:
        if path not in self._tokens:
            try:
                self._tokens[path] = self._read(path)
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise ValueError(f"the vocabulary {path} cannot be read: {reason}") from error
        return self._tokens[path]

    def _cast(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec]
    ) -> tuple[tuple[Conversion, ...], tuple[str, ...]]:
        new = variable.tensor.dtype
        old = next((each.dtype for each in tensors if each.dtype != new), new)
        if old == new:
            return (), ()
        numbers = dtypes.is_number(old) and dtypes.is_number(new)
        if not dtypes.casts_freely(old, new) and not (numbers and self._config.cast):
            key = f"scaffolds.{self._scaffold}"
            problem = Problem(
                f"{key}: {new} variables have {old} tensors",
                f"a cast from {old} to {new} may lose values"
                if numbers
                else f"{old} and {new} do not convert into each other",
                f"allow it by ++{key}.cast=true, or exclude the variables"
                if numbers
                else "exclude the variables, or rename them to other tensors",
            )
            raise MisfitError(f"dtype {old} to {new}", problem)
        return (Cast(new),), (f"{old} cast to {new}",)

    def _shape(self, variable: VariableSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> Problem:
        key, new, name = f"scaffolds.{self._scaffold}", variable.full_shape, variable.full_name
        fits: list[str | None] = []
        if len(shape) > 1 and len(shape) == len(new) and sorted(shape) == sorted(new):
            axes = _axes(shape, new)
            fits.append(override(f"{key}.transpose", {name: axes}))
        if math.prod(shape) == math.prod(new):
            fits.append(override(f"{key}.shape", "reshape"))
        if len(shape) == len(new):
            fits.append(override(f"{key}.shape", "pad_or_slice"))
        fits.append(override(f"{key}.shape", "init"))
        after = "" if shape == tensor.shape else f", after conversion {list(shape)}"
        return Problem(
            f"{key}: {name} has shape {list(new)}, but its tensor {tensor.name} has "
            f"{list(tensor.shape)}{after}",
            "a tensor restores a variable of the same shape",
            f"change the model, convert the tensor, or exclude it in {key}.variables.exclude",
            tuple(each for each in fits if each),
        )

    def _no_layout(
        self, variable: VariableSpec, tensors: Sequence[TensorSpec], error: ValueError
    ) -> Problem:
        names = " + ".join(each.name for each in tensors)
        return Problem(
            f"scaffolds.{self._scaffold}: {names} cannot be converted for {variable.full_name}",
            str(error),
            "mend the rule in convert, transpose or vocabulary, or exclude the variable",
        )


def _axes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Returns axes that bring one shape to the other; of convolution kernels the usual ones."""
    usual = (*range(2, len(old)), 1, 0)
    if tuple(old[axis] for axis in usual) == new:
        return usual
    left = list(range(len(old)))
    axes = []
    for size in new:
        axis = next(each for each in left if old[each] == size)
        left.remove(axis)
        axes.append(axis)
    return tuple(axes)


def _part(
    partition: Partition, size: tuple[int, ...], shape: tuple[int, ...], last: Conversion | None
) -> tuple[list[Conversion], Conversion | None]:
    """Returns the steps, and the last one, that give a part of a variable instead of the whole.

    Args:
      partition: the part.
      size: its shape.
      shape: the whole tensor's shape before `last`.
      last: the step that would give the whole variable.
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
