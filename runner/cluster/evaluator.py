"""A task that evaluates every checkpoint of the chief, beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from runner.cluster.channel import Channel, FirstServer, not_answering
from runner.cluster.sessions import ClusterTask
from runner.config.cluster_spec import servers
from runner.config.schema import EVALUATOR, ClusterConfig, RunConfig
from runner.console import Screen
from runner.errors import ClusterError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.graph.evaluation import EvaluationCutError
from runner.runs.run_directory import RunDirectory
from runner.session.session_manager import PLACED_SOFTLY
from runner.system.signals import Interruption
from runner.system.status import Status


def follow_checkpoints(config: RunConfig, screen: Screen) -> None:
    """Evaluates each checkpoint on the validation split, until the chief has saved its last.

    This process must be able to read the checkpoints. Of several that are written during one
    evaluation the newest is evaluated.

    Raises:
      ClusterError: when the servers do not come in time, or the first of them or the run
        is gone for `cluster.max_wait_secs`; at once when the chief has other settings.
      InterruptedRunError: after a signal.
    """
    with Interruption(config.session.grace_seconds).handled() as interruption:
        interruption.promise_resume()
        task = ClusterTask(config, screen, interruption)
        followed = FollowedRun(task.cluster, Path(config.run_dir))
        built = build_graph(config, "validation", train=False)
        task.wait_for_servers()
        # TensorFlow would report an exception in the middle of its work at length.
        with interruption.deferred():
            _follow(task, followed, built)
        interruption.check()
    screen.line("done")


def _follow(task: ClusterTask, followed: FollowedRun, built: BuiltGraph) -> None:
    server = FirstServer(task.cluster)
    evaluated: str | None = None
    server.ask(lambda session, channel: channel.ended[EVALUATOR].clear(session))
    while True:
        task.interruption.check()
        answer = server.ask(
            lambda session, channel: (channel.run.text(session), channel.saved.is_set(session))
        )
        name, saved = answer or (None, False)
        if name != followed.name and name is not None:
            server.require_agreement(task.config)
        followed.update(name)
        newest = followed.newest()
        if newest is not None and newest != evaluated:
            result = evaluated_checkpoint(built, newest, task.interruption.received)
            if result is None:
                continue  # There is a newer one, or a signal has come.
            step, metrics = result
            shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            task.screen.line(f"step {step}  validation  {shown}")
            if not send(server, metrics, step):
                reason = f"{server.name} does not answer"
                task.screen.line(f"step {step}: these metrics are not recorded: {reason}")
            evaluated = newest
        elif saved or followed.status == Status.FINISHED:
            break
        else:
            followed.check_presence(answers=answer is not None)
            with task.interruption.interruptible():
                time.sleep(task.cluster.recovery_wait_secs)
    server.ask(lambda session, channel: channel.ended[EVALUATOR].set(session))


def send(server: FirstServer, metrics: Mapping[str, float], step: int) -> bool:
    """Sends the metrics of a checkpoint to the chief; returns whether the server has them."""
    values = {f"validation/{name}": value for name, value in metrics.items()}

    def deliver(session: tf.compat.v1.Session, channel: Channel) -> bool:
        channel.send(session, EVALUATOR, values, step=step)
        return True

    return server.ask(deliver) is not None


class FollowedRun:
    """The chief's run, whose checkpoints are evaluated.

    Args:
      cluster: the resolved cluster.
      container: the configured `run_dir`.
      clock: a monotonic clock, in seconds.

    Attributes:
      name: its directory relative to `container`, as the chief announces it; None before.
      directory: its directory; None before it is announced.
      status: its status at the last update; None before it has one.
    """

    def __init__(
        self, cluster: ClusterConfig, container: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._container, self._clock = cluster, container, clock
        self._gone_since: float | None = None
        self.name: str | None = None
        self.directory: RunDirectory | None = None
        self.status: str | None = None

    def update(self, name: str | None) -> None:
        """Reads the status of the run that the chief announces as `name`; None is the same run."""
        if name is not None:
            self.name, self.directory = name, RunDirectory(self._container / name)
        record = self.directory.read() if self.directory is not None else None
        self.status = None if record is None else record.status

    def newest(self) -> str | None:
        """Returns the newest checkpoint, or None without one."""
        if self.directory is None:
            return None
        newest: str | None = tf.train.latest_checkpoint(str(self.directory.checkpoints))
        return newest

    def check_presence(self, *, answers: bool) -> None:
        """Notes whether the first parameter server answers.

        Raises:
          ClusterError: when it did not, or the run was not RUNNING, for `cluster.max_wait_secs`.
        """
        if answers and self.status in (None, Status.RUNNING):
            self._gone_since = None
            return
        now, limit = self._clock(), self._cluster.max_wait_secs
        if self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since < limit:
            return
        if not answers:
            tasks = servers(self._cluster)
            raise ClusterError(not_answering(tasks, [*tasks][:1], limit))
        raise ClusterError.of(
            f"{self.directory.path if self.directory else 'the run'} is {self.status}",
            f"no chief has resumed it for {limit:g} s (cluster.max_wait_secs)",
            "start the chief again, and then the evaluator",
        )


def evaluated_checkpoint(
    built: BuiltGraph, checkpoint: str, cut: Callable[[], bool] = lambda: False
) -> tuple[int, dict[str, float]] | None:
    """Evaluates a checkpoint and returns its step and metrics; None if it is removed meanwhile.

    `cut` is asked after each batch whether to end without a result.
    """
    with built.graph.as_default(), tf.compat.v1.Session(config=PLACED_SOFTLY) as session:
        try:
            built.saver.restore(session, checkpoint)
        except (tf.errors.OpError, ValueError):
            # The chief removes the oldest as it saves a new one.
            if Path(f"{checkpoint}.index").exists():
                raise
            return None
        step = int(session.run(tf.compat.v1.train.get_global_step()))
        try:
            with built.explaining():
                return step, built.evaluation.evaluate(session, cut)
        except EvaluationCutError:
            return None
