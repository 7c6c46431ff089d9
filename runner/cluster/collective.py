"""The tasks that take each step together, and how the others follow the chief.

Each has all variables, and replicas of the step on its devices, whose sums reach the replicas of
all tasks (`runner.graph.step_sums`). Before every step the chief tells the others what comes. Once
a session, and when something else than a step has changed its values, they take them over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tensorflow as tf

from runner.config.choices import StateClass
from runner.config.cluster_spec import replica_index
from runner.config.schema import ClusterConfig
from runner.graph.built_graph import BuiltGraph
from runner.graph.replica import Replica, seed_of
from runner.graph.step_sums import in_packs
from runner.graph.traces import METRICS
from runner.planning.variables import classify

# The group of one CPU of each task, beside the group of all replicas.
_GROUP = 2
_SIGNAL, _VALUES = 1_000_000, 1_000_001
# What collectives transport; other types travel in one that holds all of their values.
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class Signal(Enum):
    """The next thing that all tasks do, as the chief announces it."""

    STEP = 0
    FINISHED = 1
    LEFT = 2
    # They take over its values, or also its position in the training input.
    VALUES = 3
    SESSION = 4


@dataclass(frozen=True)
class Signals:
    """How the chief announces what comes, to tasks that wait for it.

    It is a run of its own: tasks can take part in a run alone that has the same collectives.

    Attributes:
      value: the value of a `Signal` [1], which the chief feeds.
      sent: the same in all tasks.
    """

    value: tf.Tensor
    sent: tf.Tensor

    def announce(self, session: tf.compat.v1.Session, signal: Signal) -> None:
        """Tells the other tasks what comes."""
        session.run(self.sent, {self.value: [signal.value]})

    def follow(self, session: tf.compat.v1.Session) -> Signal:
        """Waits for the chief, and returns what comes."""
        return Signal(session.run(self.sent)[0])


class CollectiveReplica(Replica):
    """The training graph of one task of a cluster in mode `collective`.

    Args:
      cluster: the resolved configuration. Before the tasks are known the graph is the chief's.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        self.tasks, self.task = cluster.workers, replica_index(cluster)

    def take_over(self, variables: Mapping[str, tf.Variable], first: int) -> tf.Operation:
        """Returns the operation by which all tasks take over the chief's values.

        Seeds of random numbers are then changed in the other tasks, so that all draw others;
        metrics are the sums of all replicas, which the chief holds.

        Args:
          variables: name -> variable of the first replica of this task.
          first: its index among the replicas of all tasks.
        """
        shared = {name: v for name, v in variables.items() if v.dtype.base_dtype != tf.string}
        keys = itertools.count(_VALUES)
        with tf.device("/cpu:0"):
            values = [_as_sent(variable.read_value()) for variable in shared.values()]
            if not self.task:
                return tf.group(in_packs(values, self._in_turn(self._send, keys)))
            received = in_packs(values, self._in_turn(self._receive, keys))
        assigned = []
        for (name, variable), value in zip(shared.items(), received, strict=True):
            value = tf.cast(value, variable.dtype.base_dtype)
            if name.startswith(METRICS):
                value = tf.zeros_like(value)
            elif classify(name, model=True) is StateClass.random_state:
                value = seed_of(first, value)
            assigned.append(variable.assign(value, read_value=False))
        return tf.group(assigned)

    def signals(self) -> Signals:
        """Adds the operation by which the chief announces what comes to the default graph."""
        with tf.control_dependencies(None), tf.device("/cpu:0"), tf.name_scope("signal"):
            value = tf.compat.v1.placeholder_with_default([Signal.STEP.value], [1])
            if self.task:
                return Signals(value, self._receive(value, _SIGNAL))
            return Signals(value, self._send(value, _SIGNAL))

    def _in_turn(
        self, collective: Callable[[tf.Tensor, int], tf.Tensor], keys: itertools.count[int]
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a collective that runs after the one before it, with the next of the keys."""
        before: list[tf.Operation] = []

        def run(values: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(before):
                result = collective(values, next(keys))
            before[:] = [result.op]
            return result

        return run

    def _send(self, values: tf.Tensor, key: int) -> tf.Tensor:
        return tf.raw_ops.CollectiveBcastSendV2(input=values, **self._of(key))

    def _receive(self, values: tf.Tensor, key: int) -> tf.Tensor:
        """Returns values of the type and shape of `values`."""
        shape = values.shape.as_list()
        return tf.raw_ops.CollectiveBcastRecvV2(T=values.dtype, shape=shape, **self._of(key))

    def _of(self, key: int) -> dict[str, Any]:
        return {"group_size": self.tasks, "group_key": _GROUP, "instance_key": key}


def _as_sent(value: tf.Tensor) -> tf.Tensor:
    if value.dtype in _SENT:
        return value
    return tf.cast(value, tf.float32 if value.dtype.is_floating else tf.int64)


class InputPosition:
    """The position in the training input, which the other tasks take over from the chief.

    Args:
      built: the graph; where it saves no position, all tasks begin with the first batch.
    """

    def __init__(self, built: BuiltGraph) -> None:
        saved = built.training.saved_input if built.training else None
        self._initializer = built.training.input_initializer if built.training else None
        self._content = None
        if saved is None:
            return
        (resource,) = saved.serialize.inputs
        self._content = tf.io.serialize_tensor(saved.serialize.outputs[0])
        self._text = tf.compat.v1.placeholder(tf.string, [])
        self._restore = tf.raw_ops.DeserializeIterator(
            resource_handle=resource, serialized=tf.io.parse_tensor(self._text, tf.variant)
        )

    def content(self, session: tf.compat.v1.Session) -> bytes:
        """Returns the position of a session; empty where the graph saves none."""
        return b"" if self._content is None else bytes(session.run(self._content))

    def restore(self, session: tf.compat.v1.Session, content: bytes | None) -> None:
        """Sets a session to a position."""
        if content:
            session.run(self._restore, {self._text: content})
        elif self._initializer is not None:
            session.run(self._initializer)
