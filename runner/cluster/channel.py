"""What tasks tell one another through the parameter servers: metrics, and that they have ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tensorflow as tf

from runner.cluster_config import PS

# Records that wait for the chief; more are dropped and counted.
CAPACITY = 10_000
_HOST = f"/job:{PS}/task:0"


class Channel:
    """Operations of the default graph that reach the same queue and flags from every task.

    A flag is a variable that is initialised or not: it needs no initialiser to run first, is in no
    collection and therefore in no checkpoint, and is unset again when its server is restarted.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        """Adds the operations.

        Args:
          tasks: the tasks that say when they have ended.
        """
        with tf.name_scope(""), tf.control_dependencies(None):
            with tf.device(_HOST):
                queue = tf.queue.FIFOQueue(
                    CAPACITY, [tf.string], [[]], shared_name="cluster_records"
                )
                self._record = tf.compat.v1.placeholder(tf.string, [])
                self._size = queue.size()
                with tf.control_dependencies([self._size]):
                    full = self._size >= CAPACITY
                self._put = tf.cond(full, lambda: tf.no_op(), lambda: queue.enqueue(self._record))
                self._full = full
                self._take = queue.dequeue_many(self._size)
            self._finished = Flag("cluster_finished", _HOST)
            self._saved = Flag("cluster_saved", _HOST)
            self._tasks = {each: Flag(f"cluster_ended_{each}", _HOST) for each in tasks}

    def send(
        self, session: tf.compat.v1.Session, task: str, metrics: Mapping[str, float], step: int
    ) -> bool:
        """Gives metrics to the chief; False where too many wait and these are dropped."""
        record = json.dumps([task, step, {name: float(each) for name, each in metrics.items()}])
        full, _ = session.run((self._full, self._put), {self._record: record})
        return not full

    def receive(self, session: tf.compat.v1.Session) -> list[tuple[str, int, dict[str, float]]]:
        """Returns task, step and metrics of all that was sent since."""
        return [tuple(json.loads(each)) for each in session.run(self._take)]

    def is_finished(self) -> tf.Tensor:
        """Returns a new tensor: whether the chief has trained to the end."""
        return self._finished.read()

    def finish(self, session: tf.compat.v1.Session) -> None:
        """Says that training has ended."""
        session.run(self._finished.set)

    def save(self, session: tf.compat.v1.Session) -> None:
        """Says that the last checkpoint is there."""
        session.run(self._saved.set)

    def is_saved(self, session: tf.compat.v1.Session) -> bool:
        """Whether it is."""
        return bool(session.run(self._saved.value))

    def end(self, session: tf.compat.v1.Session, task: str) -> None:
        """Says that a task has ended."""
        session.run(self._tasks[task].set)

    def running(self, session: tf.compat.v1.Session) -> list[str]:
        """Returns the tasks that have not said that they have ended."""
        ended = session.run({name: flag.value for name, flag in self._tasks.items()})
        return [name for name in self._tasks if not ended[name]]

    @staticmethod
    def ready(servers: int) -> list[Flag]:
        """Returns new flags, one on each server: the model has all its values.

        That its variables are initialised says less: before a warm start they are, too. A server
        that is restarted has lost its flag with its variables.
        """
        return [Flag(f"cluster_ready_{each}", f"/job:{PS}/task:{each}") for each in range(servers)]

    @staticmethod
    def released(server: int) -> Flag:
        """Returns the flag that lets a parameter server end, in a graph of its own."""
        return Flag(f"cluster_released_{server}", f"/job:{PS}/task:{server}")


class Flag:
    """A variable on one parameter server that says something by being initialised.

    Attributes:
      variable: the variable.
      set: initialises it.
      value: whether it is.
    """

    def __init__(self, name: str, device: str) -> None:
        self._device = device
        with tf.device(device):
            self.variable = tf.compat.v1.get_variable(
                name, initializer=True, collections=[], use_resource=True, partitioner=None
            )
            self.set: tf.Operation = self.variable.initializer
            self.value = self.read()

    def read(self) -> tf.Tensor:
        """Returns a new tensor: whether it is, once what controls its making has run."""
        with tf.device(self._device):
            # TensorFlow's function of that name complains where its result goes unused.
            return tf.raw_ops.VarIsInitializedOp(resource=self.variable.handle)
