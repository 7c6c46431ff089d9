"""The variable that a conversion is built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from runner.rules.conversions import Conversion, Shape
from runner.rules.vocabularies import read_vocabulary


class ConvertedVariable(NamedTuple):
    """The variable that a conversion is built for.

    Attributes:
      name: its name, or its owner's where it is a slot or an average.
      shape: its whole shape.
      linear: whether constants must not be added, as for optimizer slots.
      layer: the class of its Keras layer, e.g. `DepthwiseConv2D`; empty where it is not known.
      axes: of the kernel of an `EinsumDense`, the axes of its inputs, then of its outputs.
      has_conv1d: whether the checkpoint holds untransposed linear layers, as GPT2's, so that the
        shape of a square kernel does not tell.
      read: returns the tokens of a vocabulary file.
    """

    name: str
    shape: Shape
    linear: bool = False
    layer: str = ""
    axes: tuple[int, ...] = ()
    has_conv1d: bool = False
    read: Callable[[str], tuple[str, ...]] = read_vocabulary


# Takes the variable and the shape of the tensor; arguments of a step follow.
Build = Callable[..., tuple[Conversion, ...]]


def last_parts(target: ConvertedVariable, ends: Mapping[str, str], parts: int = 1) -> str:
    """Returns the last parts of the variable's name, which must be one of `ends`.

    Raises:
      ValueError: when they are not.
    """
    last = "/".join(target.name.split("/")[-parts:])
    if last not in ends:
        raise ValueError(f"{last!r} is not a variable that it converts: {', '.join(ends)}")
    return last
