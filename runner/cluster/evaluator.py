"""A task that evaluates every checkpoint of the chief, beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias, TypeVar

import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.server import remote_config
from runner.cluster.session_creators import wait_for_servers
from runner.cluster.tasks import telling_tasks
from runner.cluster_config import EVALUATOR
from runner.config import RunConfig
from runner.experiment import BuiltGraph
from runner.fingerprint import fingerprint
from runner.graph import build_graph
from runner.hooks import evaluate
from runner.interruption import Interruption
from runner.run_directory import RUNNING, runs
from runner.screen import Screen
from runner.sources import Sources
from runner.tracking import open_store

_Session: TypeAlias = tf.compat.v1.Session
_Value = TypeVar("_Value")


def follow_checkpoints(config: RunConfig, screen: Screen) -> None:
    """Evaluates each checkpoint on the validation split, until the chief has saved its last.

    The checkpoints must be where this process can read them. Of several that came during one
    evaluation the newest is evaluated.

    Raises:
      ClusterError: when the parameter servers do not come in time.
      InterruptedRunError: after a signal.
    """
    with Interruption(config.session.grace_seconds).handled() as interruption:
        store = open_store(config.tracking, asdict(config))
        identity = fingerprint(Sources(config, store).settings())
        built = build_graph(config, "validation", train=False)
        wait_for_servers(config.cluster)
        link = _Link(config)
        evaluated: str | None = None
        while True:
            interruption.check()
            last = link.ask(lambda session, channel: channel.is_saved(session), default=False)
            newest = _newest(config, identity)
            if newest is not None and newest != evaluated:
                step, metrics = _evaluate(built, newest)
                shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
                screen.line(f"step {step}  validation  {shown}")
                link.send({f"validation/{name}": each for name, each in metrics.items()}, step)
                evaluated = newest
            elif last:
                break
            else:
                time.sleep(config.cluster.recovery_wait_secs)
        link.ask(lambda session, channel: channel.end(session, EVALUATOR), default=None)
    screen.line("done")


def _newest(config: RunConfig, identity: str) -> str | None:
    for directory, record in runs(Path(config.run_dir)):
        if record.fingerprint == identity and record.status == RUNNING:
            newest: str | None = tf.train.latest_checkpoint(str(directory.checkpoints))
            return newest
    return None


def _evaluate(built: BuiltGraph, checkpoint: str) -> tuple[int, dict[str, float]]:
    with built.graph.as_default(), _Session() as session:
        built.saver.restore(session, checkpoint)
        return int(session.run(tf.compat.v1.train.get_global_step())), evaluate(
            session, built.split
        )


class _Link:
    """Sessions on the first parameter server, a new one where it was restarted."""

    def __init__(self, config: RunConfig) -> None:
        self._cluster = config.cluster
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._channel = Channel(telling_tasks(self._cluster))

    def ask(self, question: Callable[[_Session, Channel], _Value], default: _Value) -> _Value:
        """Returns the answer, or the default while the server is away."""
        target = f"grpc://{self._cluster.addresses.ps[0]}"
        try:
            with _Session(target, graph=self._graph, config=remote_config()) as session:
                return question(session, self._channel)
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.DeadlineExceededError,
        ) as error:
            tf.compat.v1.logging.warning("parameter server 0: %s", error.message)
            return default

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends metrics to the chief."""
        self.ask(
            lambda session, channel: channel.send(session, EVALUATOR, metrics, step), default=False
        )
