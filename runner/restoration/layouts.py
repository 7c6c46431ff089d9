"""What a named conversion is: names of tensors, and the steps from them to a variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.restoration.conversions import Combination, Conversion

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """The variable that a conversion is built for.

    Attributes:
      name: its name, or its owner's where it is a slot or an average.
      shape: its whole shape.
      linear: whether constants must not be added, as for optimizer slots.
    """

    name: str
    shape: Shape
    linear: bool = False

    @property
    def leaf(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Layout:
    """How tensors become one variable's value: a combination if there are several, then steps."""

    conversions: tuple[Conversion, ...]
    combination: Combination | None = None


@dataclass(frozen=True)
class NamedConversion:
    """One entry of the registry.

    Attributes:
      description: from which layout to which.
      build: makes the steps for a variable and the shapes of its tensors; a ValueError reports
        what does not fit.
      names: makes the tensors' names from the variable's name and the renamed name.
    """

    description: str
    build: Callable[[Target, Sequence[Shape]], Layout]
    names: Callable[[str, str], tuple[str, ...]] = lambda own, name: (name,)
