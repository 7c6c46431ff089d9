"""The layouts in which LSTM gates are stored, and the steps between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Combination, Conversion

# i: input gate, f: forget gate, c: candidate (PyTorch writes g, TensorFlow 1 j), o: output gate.
KERAS = "ifco"
TF1 = "icfo"


@dataclass(frozen=True)
class GateOrder(Conversion):
    """Reorders the four gates along the last axis, each a block of `units`.

    Attributes:
      old: the tensor's order, e.g. `icfo`.
      new: the variable's order, e.g. `ifco`.
    """

    old: str
    new: str

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        _units(shape)
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gates = np.split(value, 4, axis=-1)
        return np.concatenate([gates[self.old.index(gate)] for gate in self.new], axis=-1)

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"gates {self.old} to {self.new}"


@dataclass(frozen=True)
class AddForgetBias(Conversion):
    """Adds a constant to the forget gate's bias, which a TensorFlow 1 cell adds at every step.

    Attributes:
      order: the order of the gates along the last axis.
      amount: the constant.
    """

    order: str
    amount: float

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        _units(shape)
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        units = _units(value.shape)
        start = self.order.index("f") * units
        result = value.copy()
        result[..., start : start + units] += np.asarray(self.amount, value.dtype)
        return result

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"forget bias +{self.amount:g}"


@dataclass(frozen=True)
class TakeGate(Conversion):
    """Takes one gate out of the four along the last axis.

    Attributes:
      order: the tensor's order of the gates.
      gate: the gate taken, one letter of `order`.
    """

    order: str
    gate: str

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return (*shape[:-1], _units(shape))

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gate: NDArray[Any] = np.split(value, 4, axis=-1)[self.order.index(self.gate)]
        return gate

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"gate {self.gate} of {self.order}"


@dataclass(frozen=True)
class JoinGates(Combination):
    """Joins the gates, one tensor each, along the last axis in the order given."""

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See `Combination.shape`."""
        if len(set(shapes)) != 1 or not shapes[0]:
            raise ValueError(f"the gates have the shapes {[list(shape) for shape in shapes]}")
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.concatenate(values, axis=-1)

    def describe(self) -> str:
        """See `Combination.describe`."""
        return "gates joined"


@dataclass(frozen=True)
class Sum(Combination):
    """Adds the tensors, e.g. PyTorch's two biases, of which Keras keeps one."""

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See `Combination.shape`."""
        if len(set(shapes)) != 1:
            raise ValueError(f"the summands have the shapes {[list(shape) for shape in shapes]}")
        return shapes[0]

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        total = values[0].copy()
        for value in values[1:]:
            total += value
        return total

    def describe(self) -> str:
        """See `Combination.describe`."""
        return "summed"


def _units(shape: tuple[int, ...]) -> int:
    if not shape or shape[-1] % 4:
        raise ValueError(f"the last axis of {list(shape)} does not hold four gates")
    return shape[-1] // 4
