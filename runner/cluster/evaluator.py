"""A task that evaluates every checkpoint of the chief, beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias, TypeVar

import tensorflow as tf

from runner.cluster.channel import Agreement, Channel
from runner.cluster.server import remote_config
from runner.cluster.session_creators import wait_for_servers
from runner.config.cluster_spec import answers, not_answering, parameter_servers, telling_tasks
from runner.config.fingerprint import fingerprint
from runner.config.schema import EVALUATOR, RunConfig
from runner.console import Screen
from runner.errors import ClusterError, Problem
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph
from runner.hooks.evaluation import EvaluationCutError, evaluate
from runner.runs.run_directory import FINISHED, RUNNING, RunDirectory
from runner.system.signals import Interruption
from runner.tracking import open_store
from runner.training.sources import Sources

_Session: TypeAlias = tf.compat.v1.Session
_Value = TypeVar("_Value")


def follow_checkpoints(config: RunConfig, screen: Screen) -> None:
    """Evaluates each checkpoint on the validation split, until the chief has saved its last.

    The checkpoints must be where this process can read them. Of several that came during one
    evaluation the newest is evaluated.

    Raises:
      ClusterError: when the parameter servers do not come in time, or the first of them or the run
        is gone for `cluster.max_wait_secs`; at once when the chief has other settings.
      InterruptedRunError: after a signal.
    """
    with Interruption(config.session.grace_seconds).handled() as interruption:
        store = open_store(config.tracking, asdict(config))
        followed = FollowedRun(Path(config.run_dir), fingerprint(Sources(config, store).settings()))
        built = build_graph(config, "validation", train=False)
        wait_for_servers(config.cluster, screen.line)
        # TensorFlow would tell at length of an exception in the midst of its work.
        with interruption.deferred():
            _follow(config, screen, interruption, followed, built)
        interruption.check()
    screen.line("done")


def _follow(
    config: RunConfig,
    screen: Screen,
    interruption: Interruption,
    followed: FollowedRun,
    built: BuiltGraph,
) -> None:
    link = _Link(config, screen.line)
    first = f"grpc://{config.cluster.addresses.ps[0]}"
    agreement = Agreement(config, first, remote_config())
    patience = Patience(config)
    evaluated: str | None = None
    link.ask(lambda session, channel: channel.begin(session, EVALUATOR))
    while True:
        interruption.check()
        heard = link.ask(
            lambda session, channel: (channel.run(session), channel.look(session).saved)
        )
        if followed.directory is None and heard is not None:
            agreement.check()
        name, saved = heard or (None, False)
        status = followed.look(name)
        newest = followed.newest()
        if newest is not None and newest != evaluated:
            result = evaluated_checkpoint(built, newest, interruption.received)
            if result is None:
                continue  # There is a newer one, or a signal has come.
            step, metrics = result
            shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            screen.line(f"step {step}  validation  {shown}")
            link.send(metrics, step, followed.name)
            evaluated = newest
        elif saved or status == FINISHED:
            break
        else:
            patience.look(answers=heard is not None, run=followed)
            with interruption.prompt():
                time.sleep(config.cluster.recovery_wait_secs)
    link.ask(lambda session, channel: channel.end(session, EVALUATOR))


class FollowedRun:
    """The run whose checkpoints are evaluated: that of the chief.

    Attributes:
      name: what the chief calls it, its directory relative to `container`; None until it has.
      directory: of the run; None until there is one.
      status: what it said of itself when it was last looked at; None until there is one.
    """

    def __init__(self, container: Path, identity: str) -> None:
        """Stores its arguments.

        Args:
          container: the configured `run_dir`.
          identity: the fingerprint of the run.
        """
        self._container, self._identity = container, identity
        self.name: str | None = None
        self.directory: RunDirectory | None = None
        self.status: str | None = None

    def look(self, name: str | None) -> str | None:
        """Finds the run, and returns its status.

        Args:
          name: what the chief calls its run now; None where it is not known, so that the run is
            that of before.
        """
        self.name = self.name if name is None else name
        directory = RunDirectory(self._container / self.name) if self.name is not None else None
        record = directory.read() if directory is not None else None
        if record is None or record.fingerprint != self._identity:
            self.directory = self.status = None
        else:
            self.directory, self.status = directory, record.status
        return self.status

    def newest(self) -> str | None:
        """Returns its newest checkpoint, or None where there is none."""
        if self.directory is None:
            return None
        newest: str | None = tf.train.latest_checkpoint(str(self.directory.checkpoints))
        return newest


def evaluated_checkpoint(
    built: BuiltGraph, checkpoint: str, cut: Callable[[], bool] = lambda: False
) -> tuple[int, dict[str, float]] | None:
    """Returns the step and the metrics of a checkpoint; None where it is removed or cut meanwhile.

    Args:
      built: the graph.
      checkpoint: its path.
      cut: asked after each batch whether to end without a result.
    """
    with built.graph.as_default(), _Session() as session:
        try:
            built.saver.restore(session, checkpoint)
        except (tf.errors.OpError, ValueError):
            # The chief removes the oldest as it saves a new one.
            if Path(f"{checkpoint}.index").exists():
                raise
            return None
        step = int(session.run(tf.compat.v1.train.get_global_step()))
        try:
            return step, evaluate(session, built.split, cut)
        except EvaluationCutError:
            return None


class Patience:
    """Says when there is nobody left to follow."""

    def __init__(self, config: RunConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Stores its arguments.

        Args:
          config: the configuration, with its cluster resolved.
          clock: seconds from any origin.
        """
        self._cluster, self._clock = config.cluster, clock
        self._since: float | None = None

    def look(self, *, answers: bool, run: FollowedRun) -> None:
        """Takes notice of how things are now.

        Args:
          answers: whether the first parameter server answers.
          run: the followed run.

        Raises:
          ClusterError: when it did not, or the run was not RUNNING, for `cluster.max_wait_secs`.
        """
        if answers and run.status in (None, RUNNING):
            self._since = None
            return
        limit = self._cluster.max_wait_secs
        since = self._since = self._clock() if self._since is None else self._since
        if self._clock() - since < limit:
            return
        if not answers:
            raise ClusterError(not_answering(parameter_servers(self._cluster), ["ps 0"], limit))
        raise ClusterError(
            Problem(
                f"{run.directory.path if run.directory else 'the run'} is {run.status}",
                f"nobody has gone on with it for {limit:g} s (cluster.max_wait_secs)",
                "start the chief again, and then the evaluator",
            )
        )


class _Link:
    """Sessions on the first parameter server, a new one where it was restarted."""

    def __init__(self, config: RunConfig, say: Callable[[str], None]) -> None:
        self._cluster, self._say = config.cluster, say
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._channel = Channel(telling_tasks(self._cluster))

    def ask(self, question: Callable[[_Session, Channel], _Value]) -> _Value | None:
        """Returns the answer; None while the server is away."""
        address = self._cluster.addresses.ps[0]
        if not answers(address):
            return None  # A session would look for 10 s, in which no signal is heeded.
        try:
            with _Session(f"grpc://{address}", self._graph, remote_config()) as session:
                return question(session, self._channel)
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.DeadlineExceededError,
        ):
            return None

    def send(self, metrics: Mapping[str, float], step: int, run: str | None) -> None:
        """Sends the metrics of a run to the chief; says so where they do not arrive."""
        values = {f"validation/{name}": value for name, value in metrics.items()}

        def deliver(session: _Session, channel: Channel) -> str:
            if channel.run(session) not in (None, run):  # A server that is new knows none.
                return "the chief trains another run now"
            sent = channel.send(session, EVALUATOR, values, step)
            return "" if sent else "the chief took none for long"

        problem = self.ask(deliver)
        if problem != "":
            why = problem or "ps 0 does not answer"
            self._say(f"step {step}: these metrics are not recorded: {why}")
