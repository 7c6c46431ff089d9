"""What happens to a tensor between its checkpoint and its variable."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


class Conversion(abc.ABC):
    """One step from a checkpoint's tensor to a variable's value; each is a frozen dataclass.

    Attributes:
      needs_initial: whether `apply` must be given the variable's initial value, of which it keeps
        a part.
    """

    needs_initial: bool = False

    @abc.abstractmethod
    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that a tensor of this shape has afterwards.

        Raises:
          ValueError: when a tensor of this shape cannot be converted.
        """

    @abc.abstractmethod
    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """Returns the converted value."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a few words for the plan, e.g. `transposed (3, 2, 0, 1)`."""


class Combination(abc.ABC):
    """Makes one tensor of several of one checkpoint; combinations are frozen dataclasses."""

    @abc.abstractmethod
    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape of the combined tensor.

        Raises:
          ValueError: when tensors of these shapes cannot be combined.
        """

    @abc.abstractmethod
    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the combined value."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a few words for the plan, e.g. `sum`."""
