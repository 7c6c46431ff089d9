"""What the chief of a cluster does besides what every run does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Agreement, Channel, Flag, left_flag, released_flag
from runner.cluster.replica import ClusterReplica
from runner.cluster.server import naming_the_missing, session_config, start_server
from runner.cluster.session_creators import ClusterChiefSessionCreator
from runner.config.cluster_spec import answers, is_cluster, parameter_servers, telling_tasks
from runner.config.schema import RunConfig
from runner.system.lifeline import tell_begun as report_begun
from runner.training.run import Coordinator, Run

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_Session: TypeAlias = tf.compat.v1.Session

# Takes metric name -> value and the global step.
Record: TypeAlias = Callable[[Mapping[str, float], int], None]
# How often what other tasks have sent is recorded, in seconds.
_RECEIVE_SECONDS = 1.0


class Chief(Coordinator):
    """Leads the tasks of a cluster: its server, its sessions, and what the tasks share.

    Args:
      config: the configuration, with its cluster resolved.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config, self._cluster = config, config.cluster
        self.replica: ClusterReplica = ClusterReplica(config.cluster)
        self.others_train = not config.cluster.synchronous and config.cluster.workers > 1
        self._target: str
        self._creator: ClusterChiefSessionCreator | None = None

    def begun(self) -> None:
        """Reports that the run is begun or resumed to the process that started this one."""
        report_begun(os.environ)

    def is_over(self, run: Run) -> bool:
        """Whether the run is trained already; lets the parameter servers end that are still there.

        A chief may die once the servers have ended, without which its next life could not train.

        Raises:
          ConfigError: when the server cannot listen at its address.
        """
        if not run.directory.require().trained:
            return False
        with run.interruption.deferred():
            run.screen.line("cluster: trained already, so that only the record is closed")
            self._target = start_server(self._config).target
            self._set(released_flag, run)
        return True

    def session_creator(self, run: Run, **arguments: Any) -> ClusterChiefSessionCreator:
        """Starts the server, and returns the creator of the run's sessions.

        Raises:
          ConfigError: when the server cannot listen at its address.
        """
        self._target = start_server(self._config).target
        agreement = Agreement(self._config, self._target, session_config(self._cluster))
        self._creator = ClusterChiefSessionCreator(
            self._cluster,
            self._target,
            run.interruption.prompt,
            # Another machine may have mounted the configured folder elsewhere.
            run=str(run.directory.path.relative_to(self._config.run_dir)),
            say=run.screen.line,
            agree=agreement.leave,
            **arguments,
        )
        return self._creator

    def hooks(self, run: Run) -> tuple[list[_Hook], list[_Hook]]:
        """Returns the hooks that come before and after all others."""
        channel = _SharedChannel(telling_tasks(self._cluster))
        interrupted = run.interruption.received
        first: list[_Hook] = [_StopWorkersHook(channel, interrupted)]
        if self.replica.update is not None:
            wait = self._cluster.recovery_wait_secs
            first.append(self.replica.update.hook(self._restarted, wait))
        record, say = run.tracker.log_metrics, run.screen.line
        return first, [_TasksHook(channel, record, interrupted, say, self._cluster.grace_secs)]

    def _restarted(self) -> bool:
        return self._creator is not None and self._creator.restarted

    @contextmanager
    def leading(self, run: Run) -> Iterator[None]:
        """Lets the parameter servers end after the block, whose session still needs them.

        After a signal, or where the block fails, only those end that a signal has met or meets too:
        this run is to be resumed.

        Raises:
          ClusterError: when a step in it has waited too long, naming the tasks that do not answer;
            a `LostServerError` when a server is lost at the end.
        """
        try:
            with naming_the_missing(self._cluster):
                yield
        except BaseException:
            self._set(left_flag, run)
            raise
        self._set(left_flag if run.interruption.received() else released_flag, run)

    def _set(self, flag: Callable[[int], Flag], run: Run) -> None:
        """Sets a flag on each parameter server; reports one that does not answer."""
        servers = parameter_servers(self._cluster)
        # A session would wait for it without end.
        missing = [name for name, address in servers.items() if not answers(address)]
        if missing:
            names = ", ".join(missing)
            run.screen.line(f"cluster: no server hears that it may end, because of {names}")
            return
        config = session_config(self._cluster)
        with tf.Graph().as_default():
            flags = [flag(index).set for index in range(self._cluster.ps)]
            with tf.compat.v1.Session(self._target, config=config) as session:
                session.run(flags)


def coordinator_of(config: RunConfig) -> Coordinator:
    """Returns what leads the tasks of the configured cluster, if there is one."""
    return Chief(config) if is_cluster(config.cluster) else Coordinator()


class _SharedChannel:
    """A channel that several hooks share, made when the graph is nearly complete."""

    def __init__(self, tasks: list[str]) -> None:
        self._tasks = tasks
        self._made: Channel | None = None

    def get(self) -> Channel:
        """Returns it; the first call adds its operations to the default graph."""
        if self._made is None:
            self._made = Channel(self._tasks)
        return self._made


class _StopWorkersHook(_Hook):
    """Tells the workers to stop, or to wait, before anything else is done at the end."""

    def __init__(self, channel: _SharedChannel, interrupted: Callable[[], bool]) -> None:
        self._channel, self._interrupted = channel, interrupted

    def begin(self) -> None:
        self._channel.get()

    def end(self, session: _Session) -> None:
        if self._interrupted():
            self._channel.get().pause(session)
        else:
            self._channel.get().finish(session)


class _TasksHook(_Hook):
    """Records what other tasks send and ends when they ask; at the end waits for them."""

    def __init__(
        self,
        channel: _SharedChannel,
        record: Record,
        interrupted: Callable[[], bool],
        say: Callable[[str], None],
        grace: float,
    ) -> None:
        self._channel, self._record = channel, record
        self._interrupted, self._say, self._grace = interrupted, say, grace
        self._since = time.monotonic()

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        step = session.run(tf.compat.v1.train.get_global_step())
        self._say(f"cluster: trains from step {step}")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if time.monotonic() - self._since < _RECEIVE_SECONDS:
            return
        self._since = time.monotonic()
        self._receive(run_context.session)
        if self._channel.get().is_asked_to_stop(run_context.session):
            self._say("cluster: training stops because a worker asks for it")
            run_context.request_stop()

    def end(self, session: _Session) -> None:
        channel, deadline = self._channel.get(), time.monotonic() + self._grace
        if not self._interrupted():
            channel.save(session)
        while not self._interrupted() and (running := channel.running(session)):
            if time.monotonic() >= deadline:
                self._say(f"cluster: not waiting any longer for {', '.join(running)}")
                break
            time.sleep(0.1)
        self._receive(session)

    def _receive(self, session: _Session) -> None:
        for task, step, metrics in self._channel.get().receive(session):
            self._record({f"{task}/{name}": each for name, each in metrics.items()}, step)
