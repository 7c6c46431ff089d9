"""What lets each worker of a synchronous cluster go on to its next batch."""

from __future__ import annotations

import tensorflow as tf


class Tokens:
    """A queue of tokens for each worker, beside the global step.

    A token is the global step after an update. `SyncReplicasOptimizer` keeps those of all workers
    in one queue, where the token of a worker that is late, or was killed, goes to another: one
    worker alone may then make update after update, nobody waits, and a checkpoint or an evaluation
    of the chief's is not of one step.
    """

    def __init__(self, global_step: tf.Variable, workers: int, index: int) -> None:
        """Adds the queues to the default graph.

        Args:
          global_step: counts the updates.
          workers: how many there are.
          index: which of them this one is; the chief is 0.
        """
        self._step, self._index = global_step, index
        with tf.control_dependencies(None), tf.device(global_step.device):
            self._queues = [
                tf.queue.FIFOQueue(
                    -1, [global_step.dtype.base_dtype], [[]], shared_name=f"cluster_tokens_{each}"
                )
                for each in range(workers)
            ]

    def take(self) -> tf.Tensor:
        """Returns this worker's newest token, a scalar, once there is one; it takes them all."""
        own = self._queues[self._index]
        with tf.device(self._step.device):
            first = own.dequeue()
            with tf.control_dependencies([first]):
                others = own.dequeue_many(own.size())
            return tf.concat([first[tf.newaxis], others], 0)[-1]

    def drop(self) -> tf.Operation:
        """Returns what takes this worker's tokens, of which there may be none."""
        own = self._queues[self._index]
        with tf.device(self._step.device):
            return tf.group(own.dequeue_many(own.size()))

    def hand_out(self, tokens: tf.Tensor) -> tf.Operation:
        """Returns what gives each worker one.

        Args:
          tokens: equal ones, of shape [n].
        """
        with tf.device(self._step.device):
            token = tokens[0]
            return tf.group(*(each.enqueue(token) for each in self._queues))

    def wake_others(self) -> tf.Operation:
        """Returns what gives one to each worker but this one."""
        with tf.device(self._step.device):
            token = self._step.read_value()
            others = [each for i, each in enumerate(self._queues) if i != self._index]
            return tf.group(*(each.enqueue(token) for each in others))
