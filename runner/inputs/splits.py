"""Divides examples into training, validation and test, always the same way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fixed, and apart from the run's seed: all runs are measured on the same unseen examples.
SPLIT_SEED = 0


@dataclass(frozen=True)
class Splits:
    """Indices of examples, int64 [count] each; no two splits share one."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split(count: int, validation: float, test: float) -> Splits:
    """Divides `count` examples at random, the same way for the same count.

    Args:
      count: how many examples there are.
      validation: the part of them for validation; at least one example.
      test: the part for test; at least one example.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(count)
    held_out = max(1, round(count * validation))
    tested = max(1, round(count * test))
    return Splits(order[held_out + tested :], order[:held_out], order[held_out : held_out + tested])


def require_batches(batch_size: int, validation: float, test: float) -> None:
    """Raises ValueError unless batches, both parts and the rest hold something."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    if not (validation > 0 and test > 0 and validation + test < 1):
        raise ValueError(
            f"validation is {validation:g} and test {test:g}; both must be above 0, and together "
            "below 1"
        )
