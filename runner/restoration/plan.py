"""The restoration plan: for every variable its source tensors or its initializer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.errors import PlanError, Problem
from runner.restoration.conversions import Combination, Conversion
from runner.restoration.variables import VariableSpec


@dataclass(frozen=True)
class SourceTensor:
    """What one checkpoint gives to one variable.

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
        return (self.tensor.name, *(each.name for each in self.others))

    @property
    def needs_initial(self) -> bool:
        """Whether `convert` must be given the variable's initial value."""
        return any(each.needs_initial for each in self.conversions)

    @property
    def as_is(self) -> bool:
        """Whether the tensor is the variable's value without any change."""
        return not self.conversions and self.combination is None

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
class Assignment:
    """Where one variable's value comes from.

    Attributes:
      variable: the variable.
      scaffold: the scaffold that owns it, the first one where `collision: mean` joins several;
        None when none does.
      pieces: the source tensors; none when the initializer gives the value, one as a rule, several
        when the value is their mean (see `mean`).
      notes: what a reader should know, e.g. a cast or why the initializer is used.
      freeze_until_step: the variable does not train before this global step.
      learning_rate_multiplier: multiplies its learning rate.
    """

    variable: VariableSpec
    scaffold: str | None = None
    pieces: tuple[SourceTensor, ...] = ()
    notes: tuple[str, ...] = ()
    freeze_until_step: int = 0
    learning_rate_multiplier: float = 1.0


def mean(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns the mean of the converted pieces, computed in float64, in their own dtype.

    The mean of integers is rounded to the nearest, halves to the even one.
    """
    dtype = values[0].dtype
    total = np.zeros(values[0].shape, np.float64)
    for value in values:
        total += value.astype(np.float64)
    total /= len(values)
    return (np.rint(total) if dtype.kind in "iu" else total).astype(dtype)


@dataclass(frozen=True)
class LocatedSources:
    """What the scaffolds' checkpoints were resolved to.

    Attributes:
      specs: scaffold -> its checkpoint; None where it starts from initializers, or in `problems`.
      problems: scaffold -> why its checkpoint cannot be used; no entry where it can.
    """

    specs: Mapping[str, CheckpointSpec | None]
    problems: Mapping[str, Sequence[Problem]]


@dataclass(frozen=True)
class RestorationPlan:
    """Where every variable's value comes from.

    Attributes:
      assignments: one for every variable, in the order of the graph.
      sources: scaffold name -> its checkpoint; None where the scaffold starts from initializers.
      unused: scaffold name -> the checkpoint's tensors that no variable took.
      problems: all that stands in the way; a plan with problems is never carried out.
      notes: what concerns no single variable.
      finite: the scaffolds in whose tensors NaN and infinity are an error.
      unusable: the scaffolds whose checkpoint cannot be used, as `problems` say; nothing is known
        of where their variables would come from.
    """

    assignments: tuple[Assignment, ...]
    sources: Mapping[str, CheckpointSpec | None]
    unused: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    finite: frozenset[str] = frozenset()
    unusable: frozenset[str] = frozenset()

    def restored(self, scaffold: str) -> tuple[Assignment, ...]:
        """Returns the assignments that take something from the scaffold's checkpoint."""
        return tuple(
            each
            for each in self.assignments
            if any(piece.source == scaffold for piece in each.pieces)
        )

    def require_sound(self) -> None:
        """Raises `PlanError` with every problem, if there is any."""
        if self.problems:
            raise PlanError(*self.problems)
