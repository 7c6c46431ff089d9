"""What the chief of a cluster does besides what every run does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.replica import Replica
from runner.cluster.server import naming_the_missing, session_config, start_server
from runner.cluster.session_creators import ClusterChiefSessionCreator
from runner.cluster.tasks import is_task, telling_tasks
from runner.cluster_config import CHIEF
from runner.config import RunConfig
from runner.experiment import Training

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_Session: TypeAlias = tf.compat.v1.Session

# Takes metric name -> value and the global step.
Record: TypeAlias = Callable[[Mapping[str, float], int], None]
# How often what other tasks have sent is recorded, in seconds.
_RECEIVE_SECONDS = 1.0


class Chief:
    """The chief's server, its sessions, and its part in what the tasks tell one another."""

    def __init__(self, config: RunConfig) -> None:
        """Starts the server.

        Raises:
          ConfigError: when it cannot listen at its address.
        """
        self._cluster = config.cluster
        self._server = start_server(config)
        self._creator: ClusterChiefSessionCreator | None = None
        self.replica = Replica(config.cluster)

    def session_creator(self, **arguments: Any) -> ClusterChiefSessionCreator:
        """Returns the creator of the run's sessions.

        Args:
          **arguments: those of `ChiefSessionCreator` but `master` and `config`.
        """
        self._creator = ClusterChiefSessionCreator(self._cluster, self._server.target, **arguments)
        return self._creator

    def hooks(
        self,
        training: Training,
        record: Record,
        interrupted: Callable[[], bool],
        say: Callable[[str], None],
    ) -> tuple[list[_Hook], list[_Hook]]:
        """Returns the hooks that come before and after all others.

        Args:
          training: the training step.
          record: is given the metrics of other tasks.
          interrupted: whether a signal ends the run, which then goes on later.
          say: is given a line for people.
        """
        channel = _SharedChannel(telling_tasks(self._cluster))
        first: list[_Hook] = [_Finish(channel, interrupted)]
        if training.synchronous is not None:
            first.append(training.synchronous.hook(self._restarted, interrupted))
        last = [_Farewell(channel, record, interrupted, say, self._cluster.grace_secs)]
        return first, last

    def _restarted(self) -> bool:
        return self._creator is not None and self._creator.restarted

    @contextmanager
    def leading(self, interrupted: Callable[[], bool]) -> Iterator[None]:
        """Lets the parameter servers end after the block, whose session still needs them.

        Not where it fails or was interrupted, so that this run can go on.

        Args:
          interrupted: whether a signal ended it.

        Raises:
          ClusterError: when a step in it has waited too long, naming the tasks that do not answer.
        """
        with naming_the_missing(self._cluster):
            yield
        if not interrupted():
            with tf.Graph().as_default():
                release = [Channel.released(index).set for index in range(self._cluster.ps)]
                config = session_config(self._cluster)
                with tf.compat.v1.Session(self._server.target, config=config) as session:
                    session.run(release)


def chief(config: RunConfig) -> Chief | None:
    """Returns the chief that this process is; None where it trains alone.

    Raises:
      ConfigError: see `Chief`.
    """
    return Chief(config) if is_task(config.cluster, CHIEF) else None


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


class _Finish(_Hook):
    """Tells the workers to stop, before anything else is done at the end."""

    def __init__(self, channel: _SharedChannel, interrupted: Callable[[], bool]) -> None:
        self._channel, self._interrupted = channel, interrupted

    def begin(self) -> None:
        self._channel.get()

    def end(self, session: _Session) -> None:
        if not self._interrupted():
            self._channel.get().finish(session)


class _Farewell(_Hook):
    """Records what other tasks send; at the end waits for them, and lets the servers go."""

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
        if time.monotonic() - self._since >= _RECEIVE_SECONDS:
            self._since = time.monotonic()
            self._receive(run_context.session)

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
