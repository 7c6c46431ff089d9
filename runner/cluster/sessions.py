"""Creates a task's server, and sessions that wait for the tasks they need."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import (
    Channel,
    FirstServer,
    listed,
    not_answering,
    ready_flags,
    shared_settings,
    unreachable,
)
from runner.config.cluster_spec import (
    addresses_by_type,
    addresses_of,
    announced_name,
    answers,
    is_collective,
    needed_tasks,
    parameter_servers,
    servers,
    task_of,
    trainers,
)
from runner.config.schema import CHIEF, PS, ClusterConfig, RunConfig
from runner.console import Screen
from runner.errors import ClusterError, ConfigError, LostServerError, Problem
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph, Training
from runner.graph.devices import devices_of
from runner.graph.replica import Replica
from runner.session.cached_session import lost_servers_abort
from runner.session.monitored_session import ChiefSessionCreator, MonitoredSession
from runner.system.signals import Interruption

_Session: TypeAlias = tf.compat.v1.Session

# The time that a task needs to end cleanly.
_END_SECONDS = 2.0


@dataclass(frozen=True)
class ClusterTask:
    """This process as one of the tasks of a cluster.

    `target` is the address of its server, where its sessions are created; empty without one.
    """

    config: RunConfig
    screen: Screen
    interruption: Interruption
    target: str = ""

    @property
    def cluster(self) -> ClusterConfig:
        """The resolved cluster."""
        return self.config.cluster

    def wait(self, waiting: Callable[[], tuple[str, Problem] | None]) -> None:
        """Waits until `waiting` returns None, and prints what it waits for.

        Args:
          waiting: returns what this task waits for, and the problem if that takes too long.

        Raises:
          ClusterError: with that problem, after `cluster.max_wait_secs`.
        """
        limit, announced = self.cluster.max_wait_secs, ""
        deadline = time.monotonic() + limit
        while (awaited := waiting()) is not None:
            what, problem = awaited
            if what != announced:
                self.screen.line(f"waits for {what}, {limit:g} s at most")
                announced = what
            if time.monotonic() >= deadline:
                raise ClusterError(problem)
            time.sleep(min(self.cluster.recovery_wait_secs, 1.0))

    def wait_for_servers(self) -> None:
        """Waits until all parameter servers answer or, in mode `collective`, the chief does.

        Raises:
          ClusterError: when they do not within `cluster.max_wait_secs`.
        """
        tasks, limit = servers(self.cluster), self.cluster.max_wait_secs

        def waiting() -> tuple[str, Problem] | None:
            if missing := unreachable(tasks):
                return listed(tasks, missing), not_answering(tasks, missing, limit)
            return None

        self.wait(waiting)

    def train(
        self,
        training: Training,
        creator: tf.compat.v1.train.SessionCreator,
        hooks: Sequence[tf.compat.v1.train.SessionRunHook],
    ) -> None:
        """Takes the steps of a worker until a hook stops it.

        Raises:
          ConfigError: when the training data end.
        """
        with MonitoredSession(creator, hooks) as session:
            while not session.should_stop():
                try:
                    training.run_step(session)
                except tf.errors.OutOfRangeError as error:
                    # MonitoredSession would take it for an orderly end.
                    raise ConfigError(training.input_ended(self.config.train.steps)) from error


def start_server(config: RunConfig) -> str:
    """Starts the server of this process's task, which lives as long as the process.

    Returns:
      The server's address, for sessions.
    """
    threads = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=config.session.intra_op_threads,
        inter_op_parallelism_threads=max(config.session.inter_op_threads, 0),
    )
    devices_of(config.devices).prepare(threads)
    _lead_collectives(threads, config.cluster)
    task = task_of(config.cluster)
    server = tf.compat.v1.train.Server(
        tf.train.ClusterSpec(addresses_by_type(config.cluster)),
        job_name=task.type,
        task_index=task.index,
        config=threads,
    )
    return str(server.target)


def _lead_collectives(config: tf.compat.v1.ConfigProto, cluster: ClusterConfig) -> None:
    """Names the task that tells the others in which order the tasks of a group are."""
    if is_collective(cluster):
        config.experimental.collective_group_leader = f"/job:{CHIEF}/replica:0/task:0"


def session_config(cluster: ClusterConfig) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a task's sessions.

    They see the parameter servers and their own task, so that the loss of another worker does not
    affect them; in mode `collective` only their own task, whose collectives reach the others.
    Functions are inlined, because a function call must find all variables it reads on
    one machine. A loop in a function, as in an LSTM, passes its variables through an operation that
    can be on one machine only, which soft placement allows; variables stay where they are.
    """
    task = task_of(cluster)
    config = tf.compat.v1.ConfigProto(
        device_filters=[f"/job:{PS}", f"/job:{task.type}/task:{task.index}"]
    )
    config.graph_options.optimizer_options.do_function_inlining = True
    config.allow_soft_placement = True
    _lead_collectives(config, cluster)
    if is_collective(cluster):
        # A step waits for other tasks, which may never come.
        config.operation_timeout_in_ms = int(cluster.max_wait_secs * 1000)
    return config


def must_end(remaining: float | None, *, needed: bool) -> bool:
    """Returns whether a task ends after a signal; one that others still need ends later.

    `remaining` is the rest of its grace period in seconds, None before a signal. Near the end of
    that period every task ends.
    """
    return remaining is not None and (not needed or remaining <= _END_SECONDS)


# Of a session that `PeerWatch` has closed, or of collectives that lack a task.
_CUT_OFF = re.compile(r"[Cc]ollective|incarnation|[Cc]losed|[Cc]ancel")


def lost_task(cluster: ClusterConfig) -> LostServerError:
    """Returns the error of a process that another task's end leaves without a way to continue."""
    tasks = needed_tasks(cluster)
    missing = unreachable(tasks)
    lost = f"{listed(tasks, missing)} {'were' if len(missing) > 1 else 'was'} lost"
    if is_collective(cluster):
        state = lost if missing else "another task was lost"
        cause = "the steps after the last checkpoint are lost with it: TensorFlow's collectives "
        cause += "continue only in processes that start again"
    else:
        state = f"{lost if missing else 'a parameter server was lost'} at the end of training"
        cause = "the steps after the last checkpoint, and the last evaluation, are lost with it"
    remedy = "start it again if no launcher does; the same command continues the run"
    return LostServerError.of(state, cause, remedy)


@contextmanager
def worker_graph(
    config: RunConfig, screen: Screen, replica: Replica
) -> Iterator[tuple[ClusterTask, BuiltGraph]]:
    """Starts this worker's server and builds its graph, for training within the block.

    Raises:
      ClusterError: when other tasks do not come in time.
      InterruptedRunError: after a signal.
      UserCodeError: when an operation of the experiment's own code raises an error.
    """
    with Interruption(config.session.grace_seconds).handled() as interruption:
        interruption.promise_resume()
        task = ClusterTask(config, screen, interruption, start_server(config))
        # The configured hooks run in the chief.
        built = build_graph(replace(config, hooks={}), "validation", train=True, replica=replica)
        missing = naming_missing_tasks(config.cluster)
        with built.explaining(), interruption.deferred(), missing:
            yield task, built
        interruption.check()
    screen.line("done")


@contextmanager
def naming_missing_tasks(cluster: ClusterConfig) -> Iterator[None]:
    """Names the missing tasks when an operation waits too long or is cut off.

    Raises:
      ClusterError: in place of TensorFlow's error; a `LostServerError` where a server was lost
        and the session could not recover, as at its end.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        raise lost_task(cluster) from error
    except (tf.errors.CancelledError, tf.errors.FailedPreconditionError) as error:
        if is_collective(cluster) and _CUT_OFF.search(str(error.message)):
            raise lost_task(cluster) from error
        raise
    except tf.errors.DeadlineExceededError as error:
        tasks = trainers(cluster) | parameter_servers(cluster)
        if late := unreachable(tasks):
            raise ClusterError(not_answering(tasks, late, cluster.max_wait_secs)) from error
        raise ClusterError.of(
            f"a step has not ended within {cluster.max_wait_secs:g} s",
            "all tasks answer, but one of them sends no gradients, or is slower than that",
            "look at their logs; a larger cluster.max_wait_secs waits longer",
        ) from error


class ClusterChiefSessionCreator(ChiefSessionCreator):
    """The `ChiefSessionCreator` of a cluster's chief.

    Args:
      task: this process.
      run: the run's directory, relative to the configured `run_dir`.
      **arguments: the arguments of `ChiefSessionCreator` except `master` and `config`.

    Attributes:
      channel: in the default graph.
    """

    def __init__(self, task: ClusterTask, run: str, **arguments: Any) -> None:
        cluster = task.cluster
        super().__init__(master=task.target, config=session_config(cluster), **arguments)
        self._task, self._run = task, run
        self.channel = Channel(cluster)
        self._clear = [flag.clear_op for flag in self.channel.session_flags(cluster.ps)]
        self._set_ready = [flag.set_op for flag in ready_flags(cluster.ps)]
        self._step = tf.compat.v1.train.get_global_step()
        self._is_initialized = tf.raw_ops.VarIsInitializedOp(resource=self._step.handle)

    def create_session(self) -> _Session:
        """Waits for the parameter servers, and returns a session like its base class.

        Workers learn first that the model is initialised again, and resume when it is ready:
        otherwise their updates would become part of it.

        Raises:
          ClusterError: when the servers do not answer in time.
        """
        with self._task.interruption.interruptible(), lost_servers_abort():
            self._task.wait_for_servers()
            self._reset_servers()
            session = super().create_session()
            self.channel.discard_after(session, int(session.run(self._step)))
            session.run(self._set_ready)
            return session

    def _reset_servers(self) -> None:
        cluster = self._task.cluster
        with _Session(self._task.target, config=session_config(cluster)) as session:
            restarted = bool(session.run(self._is_initialized))
            session.run(self._clear)
            self.channel.settings.set(session, shared_settings(self._task.config))
            self.channel.run.set(session, self._run)
        if restarted and len(trainers(cluster)) > 1:
            time.sleep(cluster.recovery_wait_secs)  # Steps in flight end meanwhile.


class ClusterWorkerSessionCreator(tf.compat.v1.train.WorkerSessionCreator):
    """Creates a worker's sessions once its chief has initialised the model.

    Unlike its base class it does not wait 30 s between two attempts, nor in silence.
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
            session = self._session_when_ready()
            self.channel.ended[announced_name(self._task.cluster)].clear(session)
            return session

    def _session_when_ready(self) -> _Session:
        cluster, create = self._task.cluster, super().create_session
        (address,) = addresses_of(cluster).chief
        sessions: list[_Session] = []

        def waiting() -> tuple[str, Problem] | None:
            self._first_server.require_agreement(self._task.config)
            try:
                sessions.append(create())
            except tf.errors.DeadlineExceededError:
                state = "answers" if answers(address) else "does not answer"
                return f"the chief at {address} to make the model ready", Problem(
                    f"the model was not ready within {cluster.max_wait_secs:g} s",
                    f"it is the chief at {address} that initialises it, and that {state}",
                    "look at the chief's log; a larger cluster.max_wait_secs waits longer",
                )
            self._first_server.require_agreement(self._task.config)
            return None

        self._task.wait(waiting)
        return sessions[0]


class PeerWatch:
    """Closes a session when another task is lost, because the session's step would wait for it.

    Where a connection breaks, TensorFlow itself ends the step. This notices a machine that vanishes
    silently, and a process that was started again where none of its steps was under way.

    Args:
      is_lost: whether a task is lost.
      session: the session to close.
      poll_secs: how often to check.
    """

    def __init__(self, is_lost: Callable[[], bool], session: _Session, poll_secs: float) -> None:
        self._is_lost, self._session, self._poll_secs = is_lost, session, poll_secs
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops watching: the session has ended, or no longer needs the other tasks."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_secs):
            try:
                lost = self._is_lost()
            except RuntimeError:
                return  # The session is closed.
            except tf.errors.OpError:
                continue  # It is being closed, or a server is.
            if lost and not self._ended.is_set():
                self._session.close()
                return
