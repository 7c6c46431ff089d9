"""Finds NaN and infinity in what checkpoints give."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import Block
from runner.errors import CheckpointError, Problem
from runner.restoration import dtypes

_LOGGER = logging.getLogger(__name__)


class NonFinite:
    """What was found in the tensors of one restoration."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[Block | None, int]] = {}

    def look(
        self, source: str, tensor: str, value: NDArray[Any], block: Block | None = None
    ) -> None:
        """Counts the elements that are not finite; only floating-point numbers can be that.

        Args:
          source: the scaffold in whose checkpoint the tensor is.
          tensor: its name.
          value: its value, of any dtype, or that of the block.
          block: which block of the tensor it is; None for the whole. Blocks do not overlap.
        """
        if not (value.dtype.kind == "c" or dtypes.is_float(value.dtype)):
            return
        if not _surely_finite(value):
            count = int(np.count_nonzero(~np.isfinite(value)))
            if count:
                self._counts.setdefault((source, tensor), {})[block] = count

    def report(self, paths: Mapping[str, str], refused: frozenset[str]) -> None:
        """Logs a warning for every tensor found, and forgets them.

        Args:
          paths: scaffold name -> the path of its checkpoint.
          refused: the scaffolds with `finite: true`.

        Raises:
          CheckpointError: with every tensor found in a checkpoint of a `refused` scaffold.
        """
        found, self._counts = self._counts, {}
        problems = []
        for (source, tensor), blocks in found.items():
            count = blocks.get(None, sum(blocks.values()))
            state = f"scaffolds.{source}: {tensor} in {paths[source]} holds {count} NaN or infinite"
            if source in refused:
                problems.append(
                    Problem(
                        f"{state} values",
                        f"scaffolds.{source}.finite is true",
                        "name a checkpoint from before that, exclude the variable, or set "
                        f"scaffolds.{source}.finite=false",
                    )
                )
            else:
                _LOGGER.warning("%s values; scaffolds.%s.finite=true refuses them", state, source)
        if problems:
            raise CheckpointError(*problems)


def _surely_finite(value: NDArray[Any]) -> bool:
    """Returns True if every element is finite; may return False although it is.

    A scalar product is twice as fast as asking every element, and is not finite if one is not.
    """
    if value.dtype not in (np.float32, np.float64) or not value.flags.c_contiguous:
        return False
    flat = value.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))
