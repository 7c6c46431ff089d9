"""Restores the subset of variables that a plan takes from each scaffold's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from runner.restoration.plan import RestorationPlan


class SubsetRestorer:
    """Restores some variables from a TensorFlow bundle.

    It has the part of a `tf.compat.v1.train.Saver` that a session manager calls, and never saves.
    Its operations are added when it is made, before the graph is finalised; restoring adds none.
    Unlike a Saver it may give one tensor to several variables.
    """

    def __init__(self, path: str, tensors: Sequence[str], variables: Sequence[tf.Variable]) -> None:
        """Adds the operations to the default graph.

        Args:
          path: the bundle's prefix.
          tensors: the tensors' names in the bundle.
          variables: for each tensor the variable of the same shape and dtype that takes it.
        """
        self.path, self.variables = path, tuple(variables)
        with tf.name_scope("restore_subset"):
            self._prefix = tf.compat.v1.placeholder(tf.string, shape=[], name="prefix")
            values = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                dtypes=[variable.dtype.base_dtype for variable in variables],
            )
            self._restore = tf.group(
                *(
                    tf.compat.v1.assign(variable, tf.ensure_shape(value, variable.shape))
                    for variable, value in zip(variables, values, strict=True)
                )
            )

    def build(self) -> None:
        """Does nothing; a Scaffold asks its saver to build itself."""

    def restore(self, session: tf.compat.v1.Session, path: str) -> None:
        """Assigns the variables from the bundle whose prefix is `path`, in one run.

        Raises:
          tf.errors.OpError: when the bundle cannot be read or lacks a tensor.
        """
        session.run(self._restore, feed_dict={self._prefix: path})


def subset_restorers(
    plan: RestorationPlan, variables: Mapping[str, tf.Variable]
) -> dict[str, SubsetRestorer]:
    """Returns scaffold name -> what restores its subset; scaffolds that take nothing are absent.

    Args:
      plan: a plan without problems.
      variables: name -> variable of the default graph.

    Raises:
      PlanError: when the plan has problems.
    """
    plan.require_sound()
    restorers = {}
    for scaffold, source in plan.sources.items():
        restored = plan.restored(scaffold)
        if restored and source is not None:
            restorers[scaffold] = SubsetRestorer(
                source.path,
                [each.pieces[0].tensor.name for each in restored],
                [variables[each.variable.name] for each in restored],
            )
    return restorers
