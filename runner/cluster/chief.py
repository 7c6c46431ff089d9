"""The chief of a cluster, and the parameter servers, which hold its variables.

`coordinator_of` and `run_task` give each process of a cluster its role.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Announcement, Channel, left_flag, released_flag, unreachable
from runner.cluster.collective import CollectiveReplica
from runner.cluster.evaluator import follow_checkpoints
from runner.cluster.local import report_begun
from runner.cluster.peers import (
    CollectiveChiefSessionCreator,
    EndTogetherHook,
    StepTogetherHook,
    run_collective_worker,
)
from runner.cluster.sessions import (
    ClusterChiefSessionCreator,
    ClusterTask,
    must_end,
    naming_missing_tasks,
    session_config,
    start_server,
)
from runner.cluster.task_replica import ClusterReplica
from runner.cluster.worker import run_worker
from runner.config.cluster_spec import is_cluster, is_collective, parameter_servers, task_of
from runner.config.masking import Mask
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.console import Screen
from runner.system.signals import Interruption
from runner.tracking.current_run import CurrentRun
from runner.training.experiment import Coordinator, OpenedRun

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_Session: TypeAlias = tf.compat.v1.Session

# How often the metrics of other tasks are recorded, in seconds.
_RECEIVE_SECONDS = 1.0
# How often a parameter server checks whether it is released, in seconds.
_POLL_SECONDS = 0.5


class _Leader(Coordinator):
    """Leads the other tasks of a cluster."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._cluster = config, config.cluster

    def report_begun(self) -> None:
        """Tells the process that started this one that the run has begun or resumed."""
        report_begun(os.environ)

    def is_trained(self, run: OpenedRun) -> bool:
        """Returns whether the run is trained already, and then releases the parameter servers.

        A chief may die after the other tasks have ended, and cannot train without them when it is
        restarted.
        """
        if not run.directory.load_record().trained:
            return False
        with run.interruption.deferred():
            run.screen.line("cluster: trained already, so that only the record is closed")
            self._release_servers(run)
        return True

    def _release_servers(self, run: OpenedRun) -> None:
        """Lets parameter servers end, if there are any."""

    def _task(self, run: OpenedRun) -> tuple[ClusterTask, str]:
        """Starts the server; returns this task and the name by which the others find the run."""
        task = ClusterTask(self._config, run.screen, run.interruption, start_server(self._config))
        # Another machine may have mounted the configured folder elsewhere.
        return task, str(run.directory.path.relative_to(self._config.run_dir))


class Chief(_Leader):
    """Leads the tasks of a cluster: its server, its sessions and the flags of the servers."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.replica: ClusterReplica = ClusterReplica(config.cluster)
        self._target: str
        self._creator: ClusterChiefSessionCreator

    def _release_servers(self, run: OpenedRun) -> None:
        self._target = start_server(self._config)
        self._set(released_flag, run)

    def session_creator(self, run: OpenedRun, **arguments: Any) -> ClusterChiefSessionCreator:
        """Starts the server, and returns the creator of the run's sessions; see `start_server`."""
        task, name = self._task(run)
        self._target = task.target
        self._creator = ClusterChiefSessionCreator(task, name, **arguments)
        return self._creator

    def hooks(self, run: OpenedRun) -> tuple[list[_Hook], list[_Hook]]:
        """Returns the hooks to run before all others, and those to run after them."""
        channel = self._creator.channel
        stopping = _StopWorkersHook(channel, run.interruption.received)
        return [stopping], [_TasksHook(channel, run, self._cluster.grace_secs)]

    @contextmanager
    def session_scope(self, run: OpenedRun) -> Iterator[None]:
        """Releases the parameter servers after the block, whose session still needs them.

        After a signal, or if the block fails, only servers that receive a signal end, because this
        run is to be resumed.

        Raises:
          ClusterError: when a step in the block has waited too long, naming the tasks that do not
            answer; a `LostServerError` when a server is lost at the end.
        """
        try:
            with naming_missing_tasks(self._cluster):
                yield
        except BaseException:
            self._set(left_flag, run)
            raise
        self._set(left_flag if run.interruption.received() else released_flag, run)

    def _set(self, flag: Callable[[int], Announcement], run: OpenedRun) -> None:
        """Sets a flag on each parameter server, unless one of them does not answer."""
        # A session would wait for it forever.
        if missing := unreachable(parameter_servers(self._cluster)):
            run.screen.line(
                f"cluster: could not release the parameter servers, because {', '.join(missing)} "
                f"{'does' if len(missing) == 1 else 'do'} not answer"
            )
            return
        config = session_config(self._cluster)
        with tf.Graph().as_default():
            flags = [flag(index).set_op for index in range(self._cluster.ps)]
            with tf.compat.v1.Session(self._target, config=config) as session:
                session.run(flags)


class CollectiveChief(_Leader):
    """Leads the tasks of a cluster in mode `collective`, in which it alone saves and evaluates."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.replica: CollectiveReplica = CollectiveReplica(config.cluster)
        self._creator: CollectiveChiefSessionCreator

    def session_creator(self, run: OpenedRun, **arguments: Any) -> CollectiveChiefSessionCreator:
        """Starts the server, and returns the creator of the run's session."""
        task, name = self._task(run)
        self._creator = CollectiveChiefSessionCreator(
            task, name, built=run.built, replica=self.replica, **arguments
        )
        return self._creator

    def hooks(self, run: OpenedRun) -> tuple[list[_Hook], list[_Hook]]:
        """Returns the hooks to run before all others, and those to run after them."""
        ending = EndTogetherHook(self._creator, run.interruption.received)
        tasks = _TasksHook(self._creator.channel, run, self._cluster.grace_secs)
        return [ending], [tasks, StepTogetherHook(self._creator)]

    def share_values(self, run: OpenedRun, session: _Session) -> None:
        """Gives values of the session that no step has changed to all devices of all tasks."""
        self._creator.share_values(session)

    @contextmanager
    def session_scope(self, run: OpenedRun) -> Iterator[None]:
        """Names the missing tasks when a session fails, and lets no task join it afterwards.

        Raises:
          ClusterError: when a step has waited too long; a `LostServerError` when a task is lost.
        """
        try:
            with naming_missing_tasks(self._cluster):
                yield
        except BaseException:
            self._creator.dismiss()
            raise


def coordinator_of(config: RunConfig) -> Coordinator:
    """Returns the coordinator of the process that runs an experiment."""
    if not is_cluster(config.cluster):
        return Coordinator()
    return CollectiveChief(config) if is_collective(config.cluster) else Chief(config)


class _StopWorkersHook(_Hook):
    """Tells the workers to stop, or to wait, before the other hooks end."""

    def __init__(self, channel: Channel, interrupted: Callable[[], bool]) -> None:
        self._channel, self._interrupted = channel, interrupted

    def end(self, session: _Session) -> None:
        if self._interrupted():
            self._channel.ready.clear(session)
        else:
            self._channel.finished.set(session)


class _TasksHook(_Hook):
    """Records metrics of other tasks and stops when they ask for it; at the end waits for them."""

    def __init__(self, channel: Channel, run: OpenedRun, grace: float) -> None:
        self._channel, self._run, self._grace = channel, run, grace
        self._received_at = time.monotonic()

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        step = session.run(tf.compat.v1.train.get_global_step())
        self._run.screen.line(f"cluster: trains from step {step}")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if time.monotonic() - self._received_at < _RECEIVE_SECONDS:
            return
        self._received_at = time.monotonic()
        self._receive(run_context.session)
        if self._channel.stop.is_set(run_context.session):
            self._run.screen.line("cluster: training stops because a worker asks for it")
            run_context.request_stop()

    def end(self, session: _Session) -> None:
        channel, interrupted = self._channel, self._run.interruption.received
        deadline = time.monotonic() + self._grace
        if not interrupted():
            channel.saved.set(session)
        while not interrupted() and (running := channel.running(session)):
            if time.monotonic() >= deadline:
                self._run.screen.line(f"cluster: not waiting any longer for {', '.join(running)}")
                break
            time.sleep(0.1)
        self._receive(session)

    def _receive(self, session: _Session) -> None:
        for task, step, metrics in self._channel.receive(session):
            values = {f"{task}/{name}": value for name, value in metrics.items()}
            self._run.tracker.log_metrics(values, step)


def serve(config: RunConfig, screen: Screen) -> None:
    """Holds variables until the chief releases this server.

    When a signal has come to all tasks, the chief needs the variables to save them: the server then
    serves until the chief has left, or `session.grace_seconds` are nearly over. A second signal
    ends it at once.

    Raises:
      InterruptedRunError: after a signal.
    """
    index = task_of(config.cluster).index
    with Interruption(config.session.grace_seconds).handled() as interruption:
        interruption.promise_resume()
        target = start_server(config)
        only_here = tf.compat.v1.ConfigProto(device_filters=[f"/job:{PS}/task:{index}"])
        with tf.Graph().as_default():
            flags = (released_flag(index).value, left_flag(index).value)
            screen.line("serves")
            with (
                interruption.deferred(),
                tf.compat.v1.Session(target, config=only_here) as session,
            ):
                announced = False
                # Joining the server would neither end nor handle a signal.
                while True:
                    released, left = session.run(flags)
                    if released:
                        break
                    if must_end(interruption.remaining(), needed=not left):
                        interruption.check()
                    if interruption.received() and not announced:
                        screen.line("continues to serve after a signal, until the chief has left")
                        announced = True
                    time.sleep(_POLL_SECONDS)
    screen.line("done")


def run_task(config: RunConfig) -> None:
    """Runs a task other than the chief; see the function of each role."""
    worker = run_collective_worker if is_collective(config.cluster) else run_worker
    roles = {PS: serve, WORKER: worker, EVALUATOR: follow_checkpoints}
    # What user code records in these tasks is dropped.
    with CurrentRun(Mask(config.tracking.mask, {})).active():
        roles[task_of(config.cluster).type](config, Screen())
