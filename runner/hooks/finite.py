"""Tells which variables hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


class FiniteCheck:
    """One operation over all floating-point variables, added to the graph when it is made."""

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        """Adds the operation.

        Args:
          variables: name -> variable; those that are not floating-point are left out.
        """
        floating = {name: each for name, each in variables.items() if each.dtype.is_floating}
        self._names = tuple(floating)
        with tf.name_scope("finite_check"):
            self._finite = [tf.reduce_all(tf.math.is_finite(each)) for each in floating.values()]

    def non_finite(self, session: tf.compat.v1.Session) -> list[str]:
        """Returns the names of the variables that hold NaN or infinity."""
        finite = session.run(self._finite)
        return [name for name, each in zip(self._names, finite, strict=True) if not each]
