"""The seam at which a graph is spread over several tasks; by default one process holds it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import tensorflow as tf

from runner.graph.optimization import Gradients
from runner.restoration.report import VariablePlacement


class Replica:
    """One copy of the training graph: where its parts are, and which batches it reads.

    This one is the only copy and places nothing; `runner.cluster.replica` has the other kind.

    Attributes:
      count: how many copies there are; each reads batches of its own.
    """

    count = 1

    def scope(self) -> AbstractContextManager[object]:
        """Places what is added to the default graph within."""
        return nullcontext()

    def partitioned(self) -> AbstractContextManager[object]:
        """Cuts large variables that are made within by `tf.compat.v1.get_variable`."""
        return nullcontext()

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches that this copy reads."""
        return dataset

    def shared_update(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        gradients: Gradients,
        change: Callable[[Gradients], Gradients],
        global_step: tf.Variable,
    ) -> tf.Operation | None:
        """Adds one update for the gradients of all copies; None when each makes its own.

        `change`, such as clipping, is applied to the averages of the gradients.
        """
        return None

    def placement(self, variables: Mapping[str, tf.Variable]) -> VariablePlacement | None:
        """Returns where the named variables are; None when all are in this process."""
        return None
