"""The tensors that give a variable its value, and the way from them to it and back."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import TensorSpec
from runner.rules.combinations import Combination
from runner.rules.conversions import Conversion


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a checkpoint, or a combination of several, and the steps to a value.

    Attributes:
      source: the scaffold in whose checkpoint it is, a key of `RestorationPlan.sources`.
      tensor: the tensor; None for a combination.
      conversions: the steps to the value, in order; empty when it is taken as it is.
      operands: what `combination` makes one tensor of, before the conversions.
      combination: None for one tensor.
    """

    source: str
    tensor: TensorSpec | None
    conversions: tuple[Conversion, ...] = ()
    operands: tuple[SourceTensor, ...] = ()
    combination: Combination | None = None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All its tensors, in the order in which `convert` takes their values."""
        if self.tensor is not None:
            return (self.tensor,)
        return tuple(tensor for operand in self.operands for tensor in operand.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its tensors."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps from the tensors to the variable's value, in words and in order."""
        within = [
            f"{'+'.join(operand.names)} {step}"
            for operand in self.operands
            for step in operand.steps
        ]
        combined = (self.combination,) if self.combination else ()
        return tuple(map(str, (*within, *combined, *self.conversions)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value.

        Raises:
          ValueError: when a step does not take the shape before it.
        """
        shape = self.tensor.shape if self.tensor else ()
        if self.combination is not None:
            shape = self.combination.shape([operand.shape for operand in self.operands])
        for step in self.conversions:
            shape = step.shape(shape)
        return shape

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
        return self._stages(iter(values), initial)[-1]

    def _stages(
        self, values: Iterator[NDArray[Any]], initial: NDArray[Any] | None
    ) -> list[NDArray[Any]]:
        """Returns the value before and after each conversion."""
        if self.combination is None:
            stages = [next(values)]
        else:
            operands = [operand._stages(values, None)[-1] for operand in self.operands]
            stages = [self.combination.apply(operands)]
        for step in self.conversions:
            stages.append(step.apply(stages[-1], initial if step.needs_initial else None))
        return stages

    def invert(self, value: NDArray[Any], tensors: MutableMapping[str, NDArray[Any]]) -> None:
        """Changes `tensors`, name -> value, so that they convert to `value`.

        What the variable does not hold, such as rows that a slice leaves out, stays as it is; if
        they convert to `value` already, so does everything.

        Raises:
          ValueError: when a step has no inverse.
        """
        stages = self._stages(iter([tensors[name] for name in self.names]), value)
        if same(stages[-1], value):
            return
        for step, before in zip(reversed(self.conversions), reversed(stages[:-1]), strict=True):
            value = step.invert(value, before)
        if self.tensor is not None:
            tensors[self.tensor.name] = value
        elif self.combination is not None:
            operands = [
                operand.convert([tensors[name] for name in operand.names])
                for operand in self.operands
            ]
            parts = self.combination.invert(value, operands)
            for operand, part in zip(self.operands, parts, strict=True):
                operand.invert(part, tensors)


def same(value: NDArray[Any], other: NDArray[Any]) -> bool:
    """Returns whether two arrays agree in dtype, shape and all values, NaN included."""
    if (value.dtype, value.shape) != (other.dtype, other.shape):
        return False
    return np.array_equal(value, other) or value.tobytes() == other.tobytes()
