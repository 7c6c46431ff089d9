"""A task's server, and sessions that see the parameter servers and wait for the tasks they need."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import (
    Channel,
    FirstServer,
    answers,
    listed,
    missing_of,
    not_answering,
    ready_flags,
    shared_settings,
)
from runner.config.cluster_spec import addresses_by_type, own_name, parameter_servers, trainers
from runner.config.schema import PS, ClusterConfig, RunConfig
from runner.console import Screen
from runner.errors import ClusterError, ConfigError, LostServerError, Problem
from runner.session.monitored_session import ChiefSessionCreator
from runner.system.signals import Interruption

_Session: TypeAlias = tf.compat.v1.Session

# What a task needs to end in good order.
_END_SECONDS = 2.0


@dataclass(frozen=True)
class ClusterTask:
    """This process as one of the tasks of a cluster.

    `target` is the address of its own server, where its sessions are made; empty without one.
    """

    config: RunConfig
    screen: Screen
    interruption: Interruption
    target: str = ""

    @property
    def cluster(self) -> ClusterConfig:
        """The resolved cluster."""
        return self.config.cluster

    def wait_for_servers(self) -> None:
        """Waits until all parameter servers answer.

        Raises:
          ClusterError: when they do not within `cluster.max_wait_secs`.
        """
        servers, limit = parameter_servers(self.cluster), self.cluster.max_wait_secs
        deadline = time.monotonic() + limit
        said = False
        while missing := missing_of(servers):
            if not said:
                self.screen.line(f"waits for {listed(servers, missing)}, {limit:g} s at most")
                said = True
            if time.monotonic() >= deadline:
                raise ClusterError(not_answering(servers, missing, limit))
            time.sleep(self.cluster.recovery_wait_secs)


def start_server(config: RunConfig) -> str:
    """Starts the server of this process's task, which lives as long as the process.

    Returns:
      Its address, as sessions take it.

    Raises:
      ConfigError: when it cannot listen at its address.
    """
    kind, index = str(config.cluster.task.type), config.cluster.task.index
    addresses = addresses_by_type(config.cluster)
    try:
        server = tf.compat.v1.train.Server(
            tf.train.ClusterSpec(addresses),
            job_name=kind,
            task_index=index,
            config=tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=config.session.intra_op_threads,
                inter_op_parallelism_threads=max(config.session.inter_op_threads, 0),
            ),
        )
    except tf.errors.OpError as error:
        raise ConfigError(
            Problem(
                f"{kind} {index} cannot listen at {addresses[kind][index]}",
                str(error.message).partition("\n")[0],
                "give the task another address",
            )
        ) from error
    return str(server.target)


def session_config(cluster: ClusterConfig) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a task's sessions.

    They see the parameter servers and their own task, so that the loss of another worker does not
    affect them. Functions are inlined, because a function called whole must find all variables it
    reads on one machine. A loop in one, such as that of an LSTM, passes its variables through an
    operation that can be on one machine only, which soft placement allows; variables stay where
    they are.
    """
    config = tf.compat.v1.ConfigProto(
        device_filters=[f"/job:{PS}", f"/job:{cluster.task.type}/task:{cluster.task.index}"]
    )
    config.graph_options.optimizer_options.do_function_inlining = True
    config.allow_soft_placement = True
    if cluster.synchronous:
        # A step waits for other workers, which may never come.
        config.operation_timeout_in_ms = int(cluster.max_wait_secs * 1000)
    return config


def is_over(remaining: float | None, *, needed: bool) -> bool:
    """Returns whether a task ends after a signal, unless the others still need it to end theirs.

    `remaining` are seconds of its grace period, None before a signal; near its end it ends anyway.
    """
    return remaining is not None and (not needed or remaining <= _END_SECONDS)


@contextmanager
def naming_missing_tasks(cluster: ClusterConfig) -> Iterator[None]:
    """Explains an operation that waited too long, or was cut off, by the tasks that are missing.

    Raises:
      ClusterError: in place of TensorFlow's error; a `LostServerError` where a server was lost
        and the session could not recover, as at its end.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        servers = parameter_servers(cluster)
        missing = listed(servers, missing_of(servers)) or "a parameter server"
        raise LostServerError(
            Problem(
                f"{missing} was lost at the end of training",
                "what came after the last checkpoint, the last evaluation too, is lost with it",
                "start it again if no launcher does; the same command continues the run",
            )
        ) from error
    except tf.errors.DeadlineExceededError as error:
        tasks = trainers(cluster) | parameter_servers(cluster)
        if late := missing_of(tasks):
            raise ClusterError(not_answering(tasks, late, cluster.max_wait_secs)) from error
        raise ClusterError(
            Problem(
                f"a step has not ended within {cluster.max_wait_secs:g} s",
                "all tasks answer, but one of them gives no gradients, or is slower than that",
                "look at their logs; a larger cluster.max_wait_secs waits longer",
            )
        ) from error


# Where several parts of a step fail, TensorFlow lists their errors in this way, and raises an error
# of the type of the first.
_LOST = re.compile(rf"^(?:ABORTED|UNAVAILABLE): From /job:{PS}/", re.MULTILINE)


@contextmanager
def lost_servers_abort() -> Iterator[None]:
    """Raises an `AbortedError` in place of a `CancelledError` that a lost server has caused.

    Raises:
      tf.errors.AbortedError: with the message of that error.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        if _LOST.search(str(error.message)) is None:
            raise
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error


class ClusterSession(tf.compat.v1.Session):
    """A session whose steps raise what a monitored session recovers from when a server is lost.

    TensorFlow may raise the `CancelledError` of the part of the step on this machine, which the
    loss has cancelled.
    """

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Runs a step; arguments and errors are those of `tf.compat.v1.Session.run`.

        Raises:
          tf.errors.AbortedError: also when a parameter server is lost, and the step cancelled.
        """
        with lost_servers_abort():
            return super().run(*arguments, **options)


def cluster_session(session: _Session) -> _Session:
    """Makes a `ClusterSession` of a session, which stays the same object.

    TensorFlow's SessionManager creates its sessions itself, of a class of its own choice.
    """
    session.__class__ = ClusterSession
    return session


class ClusterChiefSessionCreator(ChiefSessionCreator):
    """`ChiefSessionCreator` of a cluster's chief.

    Args:
      task: this process.
      run: the run's directory, relative to the configured `run_dir`.
      **arguments: those of `ChiefSessionCreator` but `master` and `config`.

    Attributes:
      channel: in the default graph.
      restarted: whether the parameter servers had been initialised by an earlier session when the
        newest was made.
    """

    def __init__(self, task: ClusterTask, run: str, **arguments: Any) -> None:
        cluster = task.cluster
        super().__init__(master=task.target, config=session_config(cluster), **arguments)
        self._task, self._run = task, run
        self.channel, self.restarted = Channel(cluster), False
        self._clear = [flag.clear_op for flag in self.channel.of_session(cluster.ps)]
        self._set_ready = [flag.set_op for flag in ready_flags(cluster.ps)]
        self._step = tf.compat.v1.train.get_global_step()
        self._is_initialized = tf.raw_ops.VarIsInitializedOp(resource=self._step.handle)

    def create_session(self) -> _Session:
        """Waits for the parameter servers, and returns a session like its base.

        Workers learn first that the model is made anew, and resume when it is ready: what they
        added meanwhile would be part of it.

        Raises:
          ClusterError: when the servers do not answer in time.
        """
        with self._task.interruption.interruptible(), lost_servers_abort():
            self._task.wait_for_servers()
            self._begin_anew()
            session = super().create_session()
            self.channel.discard_after(session, int(session.run(self._step)))
            session.run(self._set_ready)
            return cluster_session(session)

    def _begin_anew(self) -> None:
        cluster = self._task.cluster
        with _Session(self._task.target, config=session_config(cluster)) as session:
            self.restarted = bool(session.run(self._is_initialized))
            session.run(self._clear)
            self.channel.settings.set(session, shared_settings(self._task.config))
            self.channel.run.set(session, self._run)
        if self.restarted and len(trainers(cluster)) > 1:
            time.sleep(cluster.recovery_wait_secs)  # Steps in flight end meanwhile.


class ClusterWorkerSessionCreator(tf.compat.v1.train.WorkerSessionCreator):
    """Creates a worker's sessions once its chief has made the model ready.

    Unlike its base it does not wait 30 s between two attempts, nor in silence.
    """

    def __init__(self, task: ClusterTask, scaffold: tf.compat.v1.train.Scaffold) -> None:
        super().__init__(scaffold, task.target, session_config(task.cluster), max_wait_secs=0)
        self._task = task
        self._first_server = FirstServer(task.cluster)
        self.channel = Channel(task.cluster)

    def create_session(self) -> _Session:
        """Waits for the parameter servers and the chief, and returns a new session.

        Raises:
          ClusterError: when either does not come in time, or the chief has other settings.
        """
        with self._task.interruption.interruptible(), lost_servers_abort():
            self._task.wait_for_servers()
            session = self._when_ready()
            self.channel.ended[own_name(self._task.cluster)].clear(session)
            return cluster_session(session)

    def _when_ready(self) -> _Session:
        cluster = self._task.cluster
        (address,) = cluster.addresses.chief
        deadline = time.monotonic() + cluster.max_wait_secs
        waits = False
        while True:
            self._first_server.require_agreement(self._task.config)
            try:
                session = super().create_session()
            except tf.errors.DeadlineExceededError as error:
                if time.monotonic() >= deadline:
                    raise ClusterError(_not_ready(cluster, address)) from error
            else:
                self._first_server.require_agreement(self._task.config)
                return session
            if not waits:
                self._task.screen.line(
                    f"waits for the chief at {address} to make the model ready, "
                    f"{cluster.max_wait_secs:g} s at most"
                )
                waits = True
            time.sleep(cluster.recovery_wait_secs)


def _not_ready(cluster: ClusterConfig, address: str) -> Problem:
    state = "answers" if answers(address) else "does not answer"
    return Problem(
        f"the model was not ready within {cluster.max_wait_secs:g} s",
        f"it is the chief at {address} that initialises it, and that {state}",
        "look at the chief's log; a larger cluster.max_wait_secs waits longer",
    )
