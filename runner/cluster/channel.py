"""What tasks tell one another through the parameter servers: metrics, and how far each is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import tensorflow as tf

from runner.config.fingerprint import settings
from runner.config.masking import Mask, flatten
from runner.config.schema import PS, RunConfig
from runner.errors import ClusterError, Problem

# Records that wait for the chief; more are dropped and counted.
CAPACITY = 10_000
_HOST = f"/job:{PS}/task:0"
_FINISHED, _SAVED, _STOP = "cluster_finished", "cluster_saved", "cluster_stop"


class Flag:
    """A variable on one parameter server that says something by being initialised.

    It needs no initialiser to run first, is in no collection and therefore in no checkpoint, and is
    unset again when its server is restarted. Flags of one name on one device are the same.

    Attributes:
      name: the variable's name.
      set: initialises it.
      unset: takes it away again.
      value: whether it is initialised.
    """

    def __init__(self, name: str, device: str) -> None:
        """Adds the operations to the default graph."""
        self.name, self._device = name, device
        with tf.control_dependencies(None), tf.device(device):
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=name)
            self.set: tf.Operation = tf.raw_ops.AssignVariableOp(
                resource=self._handle, value=tf.constant(True)
            )
            self.unset: tf.Operation = tf.raw_ops.DestroyResourceOp(
                resource=self._handle, ignore_lookup_error=True
            )
            self.value = self.read()

    def read(self) -> tf.Tensor:
        """Returns a new tensor: whether it is, once what controls its making has run."""
        with tf.device(self._device):
            # TensorFlow's function of that name complains where its result goes unused.
            return tf.raw_ops.VarIsInitializedOp(resource=self._handle)


class Text:
    """A text on the first parameter server; like a flag, it is in no checkpoint."""

    def __init__(self, name: str) -> None:
        """Adds the operations to the default graph."""
        with tf.control_dependencies(None), tf.device(_HOST):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)
            self._given = tf.compat.v1.placeholder(tf.string, [])
            self._leave = tf.raw_ops.AssignVariableOp(resource=handle, value=self._given)
            self._is_left = tf.raw_ops.VarIsInitializedOp(resource=handle)
            self._left = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)

    def leave(self, session: tf.compat.v1.Session, text: str) -> None:
        """Leaves it for the others."""
        session.run(self._leave, {self._given: text})

    def read(self, session: tf.compat.v1.Session) -> str | None:
        """Returns what was left last; None where nothing was, since the server started."""
        if not session.run(self._is_left):
            return None
        return str(session.run(self._left), "utf-8")


@dataclass(frozen=True)
class State:
    """What the chief says, as tensors or as their values.

    Attributes:
      finished: whether it has trained to the end.
      saved: whether the last checkpoint is there, so that it needs nobody any more.
      ready: whether the model has all its values, and a chief leads.
    """

    finished: tf.Tensor
    saved: tf.Tensor
    ready: tf.Tensor


class Channel:
    """Operations of the default graph that reach the same queue and flags from every task."""

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
            self._finished, self._saved = Flag(_FINISHED, _HOST), Flag(_SAVED, _HOST)
            self._stop, self._ready = Flag(_STOP, _HOST), ready_flags(1)[0]
            self._run = Text("cluster_run")
            self._ended = {each: Flag(f"cluster_ended_{each}", _HOST) for each in tasks}
            self._now = self.state()

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

    def undo(self, session: tf.compat.v1.Session, step: int) -> None:
        """Takes back what was sent of later steps, which the chief has undone."""
        for task, sent, metrics in self.receive(session):
            if sent <= step:
                self.send(session, task, metrics, sent)

    def state(self) -> State:
        """Returns new tensors, read once what controls their making has run."""
        return State(self._finished.read(), self._saved.read(), self._ready.read())

    def look(self, session: tf.compat.v1.Session) -> State:
        """Returns what the chief says now."""
        now = self._now
        return State(*session.run((now.finished, now.saved, now.ready)))

    def lead(self, session: tf.compat.v1.Session, run: str) -> None:
        """Says which run the chief trains: its directory, relative to the configured `run_dir`."""
        self._run.leave(session, run)

    def run(self, session: tf.compat.v1.Session) -> str | None:
        """Returns what the newest chief has called its run; None before one has."""
        return self._run.read(session)

    def finish(self, session: tf.compat.v1.Session) -> None:
        """Says that training has ended."""
        session.run(self._finished.set)

    def pause(self, session: tf.compat.v1.Session) -> None:
        """Says that the chief leaves, to go on later."""
        session.run(self._ready.unset)

    def save(self, session: tf.compat.v1.Session) -> None:
        """Says that the last checkpoint is there."""
        session.run(self._saved.set)

    def ask_to_stop(self, session: tf.compat.v1.Session) -> None:
        """Asks the chief to end the training."""
        session.run(self._stop.set)

    def is_asked_to_stop(self, session: tf.compat.v1.Session) -> bool:
        """Whether a task has asked."""
        return bool(session.run(self._stop.value))

    def begin(self, session: tf.compat.v1.Session, task: str) -> None:
        """Says that a task is there, where an earlier one of that name had ended."""
        session.run(self._ended[task].unset)

    def end(self, session: tf.compat.v1.Session, task: str) -> None:
        """Says that a task has ended: it needs nobody any more, nor does the chief need it."""
        session.run(self._ended[task].set)

    def running(self, session: tf.compat.v1.Session) -> list[str]:
        """Returns the tasks that have not said that they have ended."""
        ended = session.run({name: flag.value for name, flag in self._ended.items()})
        return [name for name in self._ended if not ended[name]]


def ready_flags(servers: int) -> list[Flag]:
    """Returns flags, one on each server: the model has all its values, and a chief leads.

    That its variables are initialised says less: before a warm start they are, too. A server that
    is restarted has lost its flag with its variables.
    """
    return [_on("cluster_ready", each) for each in range(servers)]


def released_flag(server: int) -> Flag:
    """Returns the flag that lets a server end, for good."""
    return _on("cluster_released", server)


def left_flag(server: int) -> Flag:
    """Returns the flag that tells a server that the chief has left, to go on later."""
    return _on("cluster_left", server)


def flags_of_a_session(servers: int) -> list[Flag]:
    """Returns the flags that speak of one session of the chief's: a new one begins without any."""
    return [
        *ready_flags(servers),
        *(left_flag(each) for each in range(servers)),
        *(Flag(each, _HOST) for each in (_FINISHED, _SAVED, _STOP)),
    ]


def _on(name: str, server: int) -> Flag:
    return Flag(f"{name}_{server}", f"/job:{PS}/task:{server}")


# What of `cluster:` all tasks must have in common, besides the addresses.
_COMMON = ("synchronous", "backup", "placement", "partition_bytes", "workers", "ps")
# So many differences are told.
_SHOWN = 5


class Agreement:
    """What decides the result of a run, compared between its tasks."""

    def __init__(
        self, config: RunConfig, target: str, session_config: tf.compat.v1.ConfigProto
    ) -> None:
        """Stores its arguments.

        Args:
          config: the configuration, with its cluster resolved.
          target: where sessions are made that see the first parameter server.
          session_config: of these sessions.
        """
        self._config, self._target, self._session_config = config, target, session_config
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._text = Text("cluster_settings")

    def leave(self) -> None:
        """Leaves the chief's settings for the others."""
        with self._session() as session:
            self._text.leave(session, json.dumps(self._settings()))

    def check(self) -> None:
        """Compares the settings with those of the chief, once it has left them.

        Where the server does not answer, nothing is compared; a session that has variables on it
        finds out, too.

        Raises:
          ClusterError: naming what differs.
        """
        try:
            with self._session() as session:
                left = self._text.read(session)
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.DeadlineExceededError,
        ):
            return
        if left is None:
            return
        problem = _problem(self._config, self._settings(), json.loads(left))
        if problem is not None:
            raise ClusterError(problem)

    def _session(self) -> tf.compat.v1.Session:
        return tf.compat.v1.Session(self._target, self._graph, self._session_config)

    def _settings(self) -> dict[str, str]:
        """Returns dotted name -> value, as texts and without secrets."""
        config = self._config
        plain = settings(config, lambda scaffold: "")
        common = asdict(config.cluster)
        plain["cluster"] = {key: common[key] for key in _COMMON}
        shown = Mask(config.tracking.mask, asdict(config)).settings(plain)
        return {name: str(value) for name, value in flatten(shown).items()}


def _problem(config: RunConfig, own: dict[str, str], left: dict[str, str]) -> Problem | None:
    names = [name for name in sorted(own | left) if own.get(name) != left.get(name)]
    if not names:
        return None
    told = [
        f"{name} is {own.get(name, 'not set')} here and {left.get(name, 'not set')} there"
        for name in names[:_SHOWN]
    ]
    if len(names) > _SHOWN:
        told.append(f"{len(names) - _SHOWN} more")
    return Problem(
        f"this task has other settings than the chief: {'; '.join(told)}",
        "all tasks of a cluster train one model, in one way, on one set of data",
        "start this task by the command of the chief; or, where the chief is to have new settings, "
        "start the chief first",
    )
