"""Minimum, maximum, mean and NaN count of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Statistics:
    """What the values of a tensor are like.

    Attributes:
      minimum: the smallest value that is no NaN; None when there is none, as for text.
      maximum: the largest.
      mean: of the values that are no NaN, computed in float64.
      nan: how many values are NaN.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    nan: int


def statistics(value: NDArray[Any]) -> Statistics:
    """Returns the statistics of an array of any dtype; complex numbers and text have no order."""
    kind = value.dtype.name
    if "float" in kind or "complex" in kind:
        missing = np.isnan(value)
        nan = int(np.count_nonzero(missing))
    elif value.dtype.kind in "biu" or kind.startswith(("int", "uint")):
        nan = 0
    else:
        return Statistics(None, None, None, 0)
    if nan:
        value = value[~missing]
    if "complex" in kind or not value.size:
        return Statistics(None, None, None, nan)
    mean = float(np.mean(value, dtype=np.float64))
    return Statistics(float(value.min()), float(value.max()), mean, nan)
