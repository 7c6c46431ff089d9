"""Proves that restored variables hold what their sources give."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import Block
from runner.errors import CheckpointError, Problem
from runner.restoration import dtypes
from runner.restoration.plan import Assignment


def value_hash(value: NDArray[Any]) -> str:
    """Returns a hash of dtype, shape and every byte of a value; of text, of its characters."""
    digest = hashlib.blake2b(f"{value.dtype.name} {value.shape}".encode(), digest_size=16)
    if value.dtype.kind == "O":
        for each in value.ravel():
            data = each if isinstance(each, bytes) else str(each).encode()
            digest.update(f"{len(data)} ".encode() + data)
    elif value.size:
        # Some element types (those of `ml_dtypes`) have no buffer of their own.
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def require_equal(
    session: tf.compat.v1.Session,
    expected: Mapping[str, str],
    variables: Mapping[str, tf.Variable],
    assignments: Sequence[Assignment],
) -> None:
    """Reads variables back and compares their hashes.

    Args:
      session: a session in which they were restored.
      expected: variable name -> the hash of what its source gives, after conversion.
      variables: variable name -> variable.
      assignments: where the variables were restored from.

    Raises:
      CheckpointError: with every variable that differs.
    """
    values = session.run([variables[each.variable.name] for each in assignments])
    problems = []
    for each, value in zip(assignments, values, strict=True):
        found = value_hash(np.asarray(value))
        name = each.variable.name
        if found != expected[name]:
            sources = ", ".join(
                f"{'+'.join(piece.names)} of {piece.source}" for piece in each.pieces
            )
            problems.append(
                Problem(
                    f"{name} does not hold what was restored from {sources}",
                    f"its hash is {found}, that of its source {expected[name]}",
                    "look for what else assigns to it during the start (an init_fn, a hook, "
                    "another restore) and remove it; start again if the checkpoint was being "
                    "written; if neither, memory or disk gave wrong bytes: restore the file from a "
                    "copy",
                )
            )
    if problems:
        raise CheckpointError(*problems)


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
