"""The variable that a conversion is built for, and the order of a recurrent layer's gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Conversion
from runner.restoration.vocabularies import read_vocabulary

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """The variable that a conversion is built for.

    Attributes:
      name: its name, or its owner's where it is a slot or an average.
      shape: its whole shape.
      linear: whether constants must not be added, as for optimizer slots.
      layer: the class of its Keras layer, e.g. `DepthwiseConv2D`; empty where it is not known.
      has_conv1d: whether the checkpoint holds untransposed linear layers, as GPT2's, so that the
        shape of a square kernel does not tell.
      read: returns the tokens of a vocabulary file.
    """

    name: str
    shape: Shape
    linear: bool = False
    layer: str = ""
    has_conv1d: bool = False
    read: Callable[[str], tuple[str, ...]] = read_vocabulary


# Takes the variable and the shapes of its tensors.
Build = Callable[[Target, Sequence[Shape]], tuple[Conversion, ...]]


def last_parts(target: Target, ends: Mapping[str, str], parts: int = 1) -> str:
    """Returns the last parts of the variable's name, which must be one of `ends`.

    Raises:
      ValueError: when they are not.
    """
    last = "/".join(target.name.split("/")[-parts:])
    if last not in ends:
        raise ValueError(f"{last!r} is not a variable that it converts: {', '.join(ends)}")
    return last


# A layer's gates are blocks of the last axis, one letter each. Of an LSTM i: input, f: forget,
# c: candidate (PyTorch writes g, TensorFlow 1 j), o: output; of a GRU r: reset, z: update, n: new.
KERAS, TF1 = "ifco", "icfo"
KERAS_GRU, TORCH_GRU = "zrn", "rzn"


def units_of(shape: Shape, gates: str) -> int:
    """Returns the units of a layer whose gates are blocks of the last axis."""
    if not shape or shape[-1] % len(gates):
        raise ValueError(f"the last axis of {list(shape)} does not hold {len(gates)} gates")
    return shape[-1] // len(gates)


@dataclass(frozen=True)
class GateOrder(Conversion):
    """Reorders the gates along the last axis."""

    old: str
    new: str

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        units_of(shape, self.old)
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gates = dict(zip(self.old, np.split(value, len(self.old), axis=-1), strict=True))
        return np.concatenate([gates[gate] for gate in self.new], axis=-1)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return GateOrder(self.new, self.old).apply(value)

    def __str__(self) -> str:
        return f"gates {self.old} to {self.new}"


@dataclass(frozen=True)
class AddForgetBias(Conversion):
    """Adds a constant to the forget gate's bias, which a TensorFlow 1 cell adds at every step."""

    amount: float

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        result = value.copy()
        # The split gives views of the copy.
        np.split(result, len(KERAS), axis=-1)[KERAS.index("f")][...] += self.amount
        return result

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return AddForgetBias(-self.amount).apply(value)

    def __str__(self) -> str:
        return f"forget bias +{self.amount:g}"
