"""Sessions of tasks that all hold the model: they begin together, and end when one of them is lost.

A process that has lost another in a collective cannot take part in one again: TensorFlow then says
"Restart your program to reset". So every session is the process's only one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import (
    Channel,
    FirstServer,
    listed,
    require_agreement,
    shared_settings,
    unreachable,
)
from runner.cluster.collective import CollectiveReplica, InputPosition, Signal
from runner.cluster.sessions import (
    ClusterTask,
    PeerWatch,
    lost_task,
    must_end,
    session_config,
    worker_graph,
)
from runner.config.cluster_spec import addresses_of, announced_name, needed_tasks, trainer_name
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import LostServerError, Problem
from runner.graph.built_graph import BuiltGraph
from runner.graph.devices import devices_of
from runner.graph.graph_spec import local_init_op
from runner.graph.replica import Replicas
from runner.hooks import StopWhenHook
from runner.session.monitored_session import ChiefSessionCreator

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_Session: TypeAlias = tf.compat.v1.Session

_POLL_SECONDS = 0.5


class CollectiveChiefSessionCreator(ChiefSessionCreator):
    """The `ChiefSessionCreator` of a chief that gives its values to all other tasks.

    Args:
      task: this process.
      run: the run's directory, relative to the configured `run_dir`.
      built: the graph.
      replica: this process's copy of it.
      **arguments: the arguments of `ChiefSessionCreator` except `master` and `config`.

    Attributes:
      channel: in the default graph.
      watch: of the session's other tasks.
    """

    watch: PeerWatch

    def __init__(
        self,
        task: ClusterTask,
        run: str,
        *,
        built: BuiltGraph,
        replica: CollectiveReplica,
        **arguments: Any,
    ) -> None:
        cluster = task.cluster
        super().__init__(master=task.target, config=session_config(cluster), **arguments)
        self._task, self._run, self._signals = task, run, replica.signals()
        self.channel = Channel(cluster)
        self._position = InputPosition(built)
        self._take_over = _Values(built, replica, task)
        self._members: dict[str, str | None] = {}
        self._has_ended = False

    def create_session(self) -> _Session:
        """Prepares a session like its base class, and waits for the other tasks to join it.

        After a rollback these take over its values.

        Raises:
          ClusterError: when they do not in time; a `LostServerError` when one is lost.
        """
        is_first = not self._members
        with self._task.interruption.interruptible():
            if not is_first:
                self.watch.end()
            session = super().create_session()
            if is_first:
                self.channel.settings.set(session, shared_settings(self._task.config))
                self.channel.run.set(session, self._run)
                self._wait_for_members(session)
            elif self._is_lost(session):
                raise lost_task(self._task.cluster)
            self.channel.position.set(session, self._position.content(session))
            if is_first:
                self.channel.ready.set(session, json.dumps(self._members))
            self.watch = PeerWatch(
                lambda: self._is_lost(session), session, self._task.cluster.recovery_wait_secs
            )
            if not is_first:
                self._signals.announce(session, Signal.SESSION)
            self._take_over(session)
            return session

    def share_values(self, session: _Session) -> None:
        """Lets the other tasks take over values that something else than a step has changed."""
        if not self._has_ended:
            self._signals.announce(session, Signal.VALUES)
            self._take_over(session)

    def step(self, session: _Session) -> None:
        """Lets the other tasks take a step."""
        self._signals.announce(session, Signal.STEP)

    def end(self, session: _Session, signal: Signal) -> None:
        """Ends the sessions of the other tasks."""
        self._signals.announce(session, signal)
        self._has_ended = True
        self.watch.end()

    def _is_lost(self, session: _Session) -> bool:
        peers = needed_tasks(self._task.cluster)
        return bool(unreachable(peers)) or self._joined(session) != self._members

    def dismiss(self) -> None:
        """Tells the other tasks that this process no longer trains with them."""
        config = session_config(self._task.cluster)
        with tf.Graph().as_default():
            ready = Channel(self._task.cluster).ready
            with _Session(self._task.target, config=config) as session:
                ready.clear(session)

    def _joined(self, session: _Session) -> dict[str, str | None]:
        return {task: joined.text(session) for task, joined in self.channel.joined.items()}

    def _wait_for_members(self, session: _Session) -> None:
        """Waits until every other task has joined, and notes the names of their processes."""
        tasks, limit = needed_tasks(self._task.cluster), self._task.cluster.max_wait_secs
        members: dict[str, str | None] = {}

        def waiting() -> tuple[str, Problem] | None:
            members.update(self._joined(session))
            missing = unreachable(tasks)
            late = [task for task in tasks if task in missing or members[task] is None]
            if not late:
                return None
            return listed(tasks, late), Problem(
                f"{listed(tasks, late)} {'has' if len(late) == 1 else 'have'} not joined",
                f"waited for {limit:g} s (cluster.max_wait_secs); all tasks begin together",
                "look at the logs of these tasks and restart them, or fix their addresses",
            )

        self._task.wait(waiting)
        self._members = members


class CollectiveWorkerSessionCreator(tf.compat.v1.train.ChiefSessionCreator):
    """Creates the session of a worker, with the chief's values.

    Args:
      task: this process.
      built: the graph.
      replica: this process's copy of it.

    Attributes:
      watch: watches the chief.
      take_over: takes over the chief's values.
      signals: the signals that the chief sends.
      server: where the chief announces.
      name: the name of this process, by which the chief knows it from one before it.
    """

    watch: PeerWatch

    def __init__(self, task: ClusterTask, built: BuiltGraph, replica: CollectiveReplica) -> None:
        assert built.training is not None  # `worker_graph` builds it.
        local_init = local_init_op(built.scaffold, built.training.input_initializer)
        scaffold = tf.compat.v1.train.Scaffold(local_init_op=local_init, saver=built.saver)
        super().__init__(scaffold, task.target, session_config(task.cluster))
        self._task, self._created = task, False
        self.server, self.name = FirstServer(task.cluster), uuid.uuid4().hex
        self._position = InputPosition(built)
        self.take_over, self.signals = _Values(built, replica, task), replica.signals()

    def create_session(self) -> _Session:
        """Joins the chief, and returns a new session when all tasks have.

        Raises:
          ClusterError: when the chief does not come in time, or has other settings; a
            `LostServerError` when a task is lost.
        """
        if self._created:
            raise lost_task(self._task.cluster)
        self._created = True
        with self._task.interruption.interruptible():
            session = super().create_session()
            self._join()
            self.watch = PeerWatch(
                lambda: not self.is_member(), session, self._task.cluster.recovery_wait_secs
            )
            self.take_over_session(session)
            return session

    def take_over_session(self, session: _Session) -> None:
        """Takes over the chief's position in the training input and its values."""
        position = self.server.ask(lambda asked, channel: channel.position.content(asked))
        self._position.restore(session, position)
        self.take_over(session)

    def is_member(self) -> bool:
        """Returns whether the chief answers, and trains with this process."""
        ready = self.server.ask(lambda session, channel: channel.ready.text(session))
        return ready is not None and self.name in json.loads(ready).values()

    def _join(self) -> None:
        """Waits until the chief has its values and all tasks."""
        cluster, name = self._task.cluster, trainer_name(self._task.cluster)
        (address,) = addresses_of(cluster).chief
        awaited = f"the chief at {address} and all other tasks"
        problem = Problem(
            f"training has not begun within {cluster.max_wait_secs:g} s",
            f"the chief at {address} begins it when all tasks have joined",
            "look at the chief's log; a larger cluster.max_wait_secs waits longer",
        )

        def waiting() -> tuple[str, Problem] | None:
            settings = self.server.ask(lambda session, channel: channel.settings.text(session))
            require_agreement(self._task.config, settings)
            if settings is not None:
                # Repeated, because a restarted chief knows of no task.
                self.server.ask(lambda asked, channel: channel.joined[name].set(asked, self.name))
            return None if self.is_member() else (awaited, problem)

        self._task.wait(waiting)


class _Values:
    """Gives the values of the chief to all replicas of all tasks, when all of them call it."""

    def __init__(self, built: BuiltGraph, replica: CollectiveReplica, task: ClusterTask) -> None:
        assert built.training is not None  # A task that trains has built it.
        first = Replicas(devices_of(task.config.devices), replica).here.start
        self._operations = (
            replica.take_over(built.variables, first),
            built.training.to_devices,
        )

    def __call__(self, session: _Session) -> None:
        for operation in self._operations:
            session.run(operation)


class EndTogetherHook(_Hook):
    """Ends the session of all tasks when the chief's ends normally.

    It is the first hook to end: the others evaluate and save, for which the chief needs no task.

    Args:
      creator: of the chief's session.
      interrupted: whether the run is to be resumed later.
    """

    def __init__(
        self, creator: CollectiveChiefSessionCreator, interrupted: Callable[[], bool]
    ) -> None:
        self._creator, self._interrupted = creator, interrupted

    def end(self, session: _Session) -> None:
        """Tells the other tasks to end instead of taking a step."""
        self._creator.end(session, Signal.LEFT if self._interrupted() else Signal.FINISHED)


class StepTogetherHook(_Hook):
    """Lets the other tasks take the chief's step, after other hooks may have changed values."""

    def __init__(self, creator: CollectiveChiefSessionCreator) -> None:
        self._creator = creator

    def before_run(self, run_context: Any) -> None:
        """Announces the step."""
        self._creator.step(run_context.session)


class FollowHook(_Hook):
    """Takes a step when the chief does, and ends a worker's session with the chief's.

    After the last step it waits until the chief has saved it: a chief that dies before that resumes
    from an earlier step, and needs its workers.

    Args:
      task: this process.
      creator: of this worker's session.
    """

    def __init__(self, task: ClusterTask, creator: CollectiveWorkerSessionCreator) -> None:
        self._task, self._creator = task, creator

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Prints where training begins, and waits for the first step."""
        step = session.run(tf.compat.v1.train.get_global_step())
        self._task.screen.line(f"trains from step {step}")
        if not self._steps(session):
            coord.request_stop()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Waits for the next step, and stops when the chief has ended."""
        if not self._steps(run_context.session):
            run_context.request_stop()

    def _steps(self, session: _Session) -> bool:
        """Does what the chief announces, up to a step; returns False when it has ended.

        Raises:
          LostServerError: when the chief is to be resumed, or dies before it has saved.
        """
        while (signal := self._creator.signals.follow(session)) is not Signal.STEP:
            if signal is Signal.VALUES:
                self._creator.take_over(session)
            elif signal is Signal.SESSION:
                self._creator.take_over_session(session)
            else:
                self._end(signal)
                return False
        return True

    def _end(self, signal: Signal) -> None:
        self._creator.watch.end()
        if signal is Signal.LEFT:
            self._task.interruption.check()
            raise LostServerError.of(
                "the chief was interrupted",
                "it has saved the last step; all tasks begin together when it comes back",
                "start this task again if no launcher does",
            )
        server, cluster = self._creator.server, self._task.cluster
        while not server.ask(lambda session, channel: channel.saved.is_set(session)):
            if must_end(self._task.interruption.remaining(), needed=True):
                self._task.interruption.check()
            if not self._creator.is_member():
                raise lost_task(cluster)
            time.sleep(_POLL_SECONDS)
        server.ask(lambda session, channel: channel.ended[announced_name(cluster)].set(session))


def run_collective_worker(config: RunConfig, screen: Screen) -> None:
    """Trains until the chief has saved the last step.

    After a signal a worker continues until the chief has left, or `session.grace_seconds` are
    nearly over: no task can take a step without it.

    Raises:
      ClusterError: when other tasks do not come in time, or the chief has other settings; a
        `LostServerError` when one is lost, after which this process is to start again.
      ConfigError: when the training data end.
      InterruptedRunError: after a signal.
      UserCodeError: when an operation of the experiment's own code raises an error.
    """
    replica = CollectiveReplica(config.cluster)
    with worker_graph(config, screen, replica) as (task, built):
        _train(task, built, replica)


def _train(task: ClusterTask, built: BuiltGraph, replica: CollectiveReplica) -> None:
    training = built.training
    assert training is not None  # `worker_graph` builds it.
    with built.graph.as_default():
        creator = CollectiveWorkerSessionCreator(task, built, replica)
        hooks: Sequence[_Hook] = (
            FollowHook(task, creator),
            StopWhenHook(lambda: must_end(task.interruption.remaining(), needed=True)),
        )
        task.train(training, creator, hooks)
