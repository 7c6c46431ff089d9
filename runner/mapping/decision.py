"""One decision: what the variables of a call take, why, and when a difference decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runner.mapping.candidates import Candidate

# Right layers agree within 2e-6 when they get the recorded inputs; a layer that differs itself, as
# by an approximated GELU, is near. An exchange must differ ten times as much to be excluded, and
# ten times as much as that rounding.
AGREES, NEAR, MARGIN, _FLOOR = 1e-5, 0.3, 10.0, 2e-6


def is_clear(there: float, here: float) -> bool:
    """Whether another way is so much farther from a record that it is excluded."""
    return there > MARGIN * max(here, _FLOOR)


@dataclass
class Decision:
    """The tensors that the variables of one call take, and why.

    Attributes:
      call: the index of the call; its variables are read there first.
      candidate: what they take.
      relative: how far the output is from the record, relative to the record's largest value.
      record: the module whose record it was compared with; empty without one.
      next: how far the closest other way is.
      by: the layer that decided; empty as long as nothing did.
      handed_on: reads the record in the layout of the layer's output; None where it is not handed
        on.
      close: a candidate that computes nearly the same, if there is one.
      searched: how often other ways were tried in vain.
      seen: the variables, as bits, that layers have read by which they are decided.
      is_supported: whether what reads it agrees, though other ways may agree too.
      is_hidden: whether a layer behind it was only near, so that nothing behind that can decide.
    """

    call: int
    candidate: Candidate
    relative: float = math.inf
    record: str = ""
    next: float = math.inf
    by: str = ""
    handed_on: Callable[[], NDArray[Any]] | None = None
    close: Candidate | None = None
    searched: int = 0
    seen: int = 0
    is_supported: bool = False
    is_hidden: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the layer computes what its module recorded."""
        return self.relative <= AGREES

    @property
    def is_unrecorded(self) -> bool:
        """Whether no record of its module speaks for it."""
        return self.relative >= NEAR
