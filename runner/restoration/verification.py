"""Proves that restored variables hold what their sources give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import CheckpointError, Problem
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
