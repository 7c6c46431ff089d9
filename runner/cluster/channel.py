"""Connects the tasks of a cluster: finds out which respond, and shares state on the servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from runner.config.cluster_spec import (
    announcing_tasks,
    answers,
    is_collective,
    servers,
    trainers,
)
from runner.config.fingerprint import settings
from runner.config.keys import flatten
from runner.config.masking import Mask
from runner.config.schema import CHIEF, PS, ClusterConfig, RunConfig
from runner.errors import ClusterError, Problem
from runner.graph.devices import devices_of

_Session: TypeAlias = tf.compat.v1.Session
_Answer = TypeVar("_Answer")
_READY = "cluster_ready"


def unreachable(tasks: Mapping[str, str]) -> list[str]:
    """Returns the names of the tasks, such as `ps 0`, that do not answer at their addresses."""
    return [name for name, address in tasks.items() if not answers(address)]


def not_answering(tasks: Mapping[str, str], missing: Sequence[str], limit: float) -> Problem:
    """Returns the problem of tasks that have not started, or not restarted."""
    verb = "does" if len(missing) == 1 else "do"
    return Problem(
        f"{listed(tasks, missing)} {verb} not answer",
        f"waited for {limit:g} s (cluster.max_wait_secs); not started, not reachable, or the run "
        "has ended",
        "look at the logs of these tasks and restart them, or fix their addresses",
    )


def listed(tasks: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the named tasks with their addresses, for display."""
    return ", ".join(f"{name} at {tasks[name]}" for name in names)


class Announcement:
    """A string that a task announces on a server; empty for a flag, unset at first.

    The server is a parameter server or, in mode `collective`, the chief's. It needs no initialiser
    and is in no collection, hence in no checkpoint. Announcements of one name on one server are
    shared by all tasks; a server that is restarted has lost them.
    """

    def __init__(self, name: str, server: int = 0, *, job: str = PS) -> None:
        self.name, self._device = f"{name}_{server}", f"/job:{job}/task:{server}"
        with tf.control_dependencies(None), tf.device(self._device):
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=self.name)
            self._new_text = tf.compat.v1.placeholder_with_default("", [])
            self.set_op: tf.Operation = tf.raw_ops.AssignVariableOp(
                resource=self._handle, value=self._new_text
            )
            self.clear_op: tf.Operation = tf.raw_ops.DestroyResourceOp(
                resource=self._handle, ignore_lookup_error=True
            )
            self._text = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.string)
            self.value = self.read()

    def read(self) -> tf.Tensor:
        """Returns a new tensor that is true when it is set, read after the control dependencies."""
        with tf.device(self._device):
            # `tf.compat.v1.is_variable_initialized` warns where its result is not used.
            return tf.raw_ops.VarIsInitializedOp(resource=self._handle)

    def set(self, session: _Session, text: str | bytes = "") -> None:
        """Announces a string."""
        session.run(self.set_op, {self._new_text: text})

    def clear(self, session: _Session) -> None:
        """Withdraws the announcement."""
        session.run(self.clear_op)

    def is_set(self, session: _Session) -> bool:
        """Returns whether it is set."""
        return bool(session.run(self.value))

    def text(self, session: _Session) -> str | None:
        """Returns its string; None when it is not set."""
        content = self.content(session)
        return None if content is None else str(content, "utf-8")

    def content(self, session: _Session) -> bytes | None:
        """Returns the bytes of its string; None when it is not set."""
        try:
            return bytes(session.run(self._text)) if self.is_set(session) else None
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            return None  # It was withdrawn in between.


def ready_flags(servers: int) -> list[Announcement]:
    """Returns one flag on each server: the model has all its values, and a chief leads.

    Initialised variables do not say so: before a warm start they are initialised, too.
    """
    return [Announcement(_READY, server) for server in range(servers)]


def released_flag(server: int) -> Announcement:
    """Returns the flag that ends a server for good."""
    return Announcement("cluster_released", server)


def left_flag(server: int) -> Announcement:
    """Returns the flag that the chief has left and is to be resumed later."""
    return Announcement("cluster_left", server)


class State(NamedTuple):
    """The announcements of the chief, as tensors or as their values.

    Attributes:
      finished: whether it has trained to the end.
      saved: whether the last checkpoint is written, so that it no longer needs any other task.
      ready: whether the model has all its values, and a chief leads.
    """

    finished: tf.Tensor
    saved: tf.Tensor
    ready: tf.Tensor


class Channel:
    """Operations of the default graph that reach the same announcements and queue from any task.

    Attributes:
      finished: the chief has trained to the end.
      saved: the last checkpoint is written.
      ready: the first server's flag of `ready_flags`.
      stop: a worker asks the chief to end the training.
      ended: task -> it has ended, and neither needs the chief nor is needed by it.
      run: the directory of the run that the newest chief trains, relative to the configured
        `run_dir`.
      settings: see `shared_settings`.
      joined: in mode `collective`, task -> the name of the process that waits to train as it.
      position: in mode `collective`, the serialised position in the training input.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        job = CHIEF if is_collective(cluster) else PS
        announcement = partial(Announcement, job=job)
        with tf.name_scope(""), tf.control_dependencies(None):
            with tf.device(f"/job:{job}/task:0"):
                queue = tf.queue.FIFOQueue(-1, [tf.string], [[]], shared_name="cluster_records")
                self._record = tf.compat.v1.placeholder(tf.string, [])
                self._put = queue.enqueue(self._record)
                self._take = queue.dequeue_many(queue.size())
            self.finished = announcement("cluster_finished")
            self.saved = announcement("cluster_saved")
            self.stop = announcement("cluster_stop")
            self.ready = announcement(_READY)
            tasks = announcing_tasks(cluster)
            self.ended = {task: announcement(f"cluster_ended_{task}") for task in tasks}
            self.run = announcement("cluster_run")
            self.settings = announcement("cluster_settings")
            if is_collective(cluster):
                tasks = [task for task in trainers(cluster) if task != CHIEF]
                self.joined = {
                    task: announcement(f"cluster_joined_{task.replace(' ', '')}") for task in tasks
                }
                self.position = announcement("cluster_position")
            self._state = self.read_state()

    def send(
        self, session: _Session, task: str, metrics: Mapping[str, float], *, step: int
    ) -> None:
        """Sends metrics to the chief."""
        values = {name: float(value) for name, value in metrics.items()}
        session.run(self._put, {self._record: json.dumps([task, step, values])})

    def receive(self, session: _Session) -> list[tuple[str, int, dict[str, float]]]:
        """Returns the task, step and metrics of each record sent since the last call."""
        return [tuple(json.loads(record)) for record in session.run(self._take)]

    def discard_after(self, session: _Session, step: int) -> None:
        """Discards the metrics of later steps, which the chief has undone."""
        for task, sent, metrics in self.receive(session):
            if sent <= step:
                self.send(session, task, metrics, step=sent)

    def session_flags(self, servers: int) -> list[Announcement]:
        """Returns the flags of one session of the chief; the next session clears them."""
        left = [left_flag(server) for server in range(servers)]
        return [self.finished, self.saved, self.stop, *ready_flags(servers), *left]

    def read_state(self) -> State:
        """Returns new tensors, read after the present control dependencies."""
        return State(self.finished.read(), self.saved.read(), self.ready.read())

    def state(self, session: _Session) -> State:
        """Returns the announcements of the chief."""
        state: State = session.run(self._state)
        return state

    def running(self, session: _Session) -> list[str]:
        """Returns the tasks that have not announced their end."""
        ended = session.run({task: flag.value for task, flag in self.ended.items()})
        return [task for task in self.ended if not ended[task]]


# Keys of `cluster` that all tasks must have in common, besides the addresses.
_COMMON = ("mode", "placement", "workers", "ps")


def shared_settings(config: RunConfig) -> str:
    """Returns the settings that all tasks must have in common, as JSON without secrets."""
    plain = settings(config, lambda scaffold: "")
    cluster = asdict(config.cluster)
    plain["cluster"] = {key: cluster[key] for key in _COMMON}
    if is_collective(config.cluster):  # All replicas take part in the sums of a step.
        count = len(devices_of(config.devices).names) or 1
        plain["devices"] = {**plain.get("devices", {}), "count": count}
    shown = Mask(config.tracking.mask, asdict(config)).settings(plain)
    return json.dumps({name: str(value) for name, value in flatten(shown).items()})


def require_agreement(config: RunConfig, chief_settings: str | None) -> None:
    """Compares this task's settings with the chief's, which are None until it has written them.

    Raises:
      ClusterError: naming what differs.
    """
    if chief_settings is None:
        return
    here, there = json.loads(shared_settings(config)), json.loads(chief_settings)
    differences = [
        f"{name} is {here.get(name, 'not set')} here and {there.get(name, 'not set')} there"
        for name in sorted(here | there)
        if here.get(name) != there.get(name)
    ]
    if not differences:
        return
    raise ClusterError.of(
        f"this task has other settings than the chief: {'; '.join(differences)}",
        "all tasks of a cluster train one model, in one way, on one set of data",
        "start this task by the command of the chief; or, to give the chief new settings, "
        "start the chief first",
    )


class FirstServer:
    """Opens short sessions on the server of announcements, a new one each time: it may restart.

    It is the first parameter server or, in mode `collective`, the chief.

    Attributes:
      name: the name of its task.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        self.name, self._address = next(iter(servers(cluster).items()))
        job = CHIEF if is_collective(cluster) else PS
        self._config = tf.compat.v1.ConfigProto(device_filters=[f"/job:{job}/task:0"])
        self._config.operation_timeout_in_ms = 10_000
        with tf.Graph().as_default() as self._graph:
            self._channel = Channel(cluster)

    def ask(self, question: Callable[[_Session, Channel], _Answer]) -> _Answer | None:
        """Returns the answer to a question; None while the server is unavailable."""
        if not answers(self._address):
            return None  # A session would try for 10 s, in which no signal is handled.
        try:
            with _Session(f"grpc://{self._address}", self._graph, self._config) as session:
                return question(session, self._channel)
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.DeadlineExceededError,
        ):
            return None

    def require_agreement(self, config: RunConfig) -> None:
        """Compares this task's settings with the chief's, if it has written them.

        Raises:
          ClusterError: naming what differs.
        """
        require_agreement(config, self.ask(lambda session, channel: channel.settings.text(session)))
