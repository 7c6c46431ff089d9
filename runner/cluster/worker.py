"""A run as one of the workers: it trains, and leaves everything else to the chief."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.server import naming_the_missing, start_server
from runner.cluster.session_creators import ClusterWorkerSessionCreator
from runner.cluster.tasks import own_name, telling_tasks
from runner.config import RunConfig
from runner.errors import NonFiniteLossError, Problem
from runner.experiment import BuiltGraph, Training
from runner.graph import build_graph
from runner.hooks import MetricsHook, StopAtStepHook, StopWhenHook
from runner.interruption import Interruption
from runner.screen import Screen
from runner.session.monitored_session import MonitoredSession

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_Session: TypeAlias = tf.compat.v1.Session


def run_worker(config: RunConfig, screen: Screen) -> None:
    """Trains until the last step, or until the chief says that training has ended.

    Raises:
      ClusterError: when others do not come in time.
      NonFiniteLossError: when the loss of this worker is NaN or infinite.
      InterruptedRunError: after a signal.
    """
    with Interruption(config.session.grace_seconds).handled() as interruption:
        server = start_server(config)
        # Hooks of the configuration are the chief's.
        built = build_graph(replace(config, hooks={}), "validation", train=True)
        with interruption.deferred(), naming_the_missing(config.cluster):
            _train(config, built, server.target, screen, interruption)
        interruption.check()
    screen.line("done")


def _train(
    config: RunConfig, built: BuiltGraph, target: str, screen: Screen, interruption: Interruption
) -> None:
    training = built.training
    if training is None:
        raise ValueError("the graph was built without a training step")
    with built.graph.as_default():
        scaffold = _scaffold(training, config.cluster.ps)
        creator = ClusterWorkerSessionCreator(config.cluster, target, scaffold)
        telling = _Telling(config, training, screen, interruption)
        hooks: list[_Hook] = [
            _FiniteLoss(training),
            StopAtStepHook(config.train.steps),
            MetricsHook(
                {**training.values, "input_seconds": training.input_seconds},
                training.step,
                config.train.log_every,
                telling.record,
            ),
            telling,
            StopWhenHook(interruption.received),
        ]
        if training.synchronous is not None:
            hooks.insert(0, training.synchronous.hook())
        with MonitoredSession(creator, hooks) as session:
            while not session.should_stop():
                session.run(training.train_op)


def _scaffold(training: Training, servers: int) -> tf.compat.v1.train.Scaffold:
    """Returns what prepares a worker's session: its own input and local variables, no others."""
    flags = [each.variable for each in Channel.ready(servers)]
    shared = [*tf.compat.v1.global_variables(), *flags]
    return tf.compat.v1.train.Scaffold(
        local_init_op=tf.group(
            tf.compat.v1.train.Scaffold.default_local_init_op(), training.input_initializer
        ),
        ready_for_local_init_op=tf.compat.v1.report_uninitialized_variables(shared),
    )


class _FiniteLoss(_Hook):
    """Fails when this worker's loss is no number any more."""

    def __init__(self, training: Training) -> None:
        self._fetched = (training.values["loss"], training.step)

    def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss, step = run_values.results
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                Problem(
                    f"this worker's loss is {loss} at step {step}",
                    "its gradients have reached the parameter servers",
                    "look at the data and the learning rate; the chief's checkpoints are finite",
                )
            )


class _Telling(_Hook):
    """Sends this worker's metrics, says that it has ended, and hears that the chief has."""

    def __init__(
        self, config: RunConfig, training: Training, screen: Screen, interruption: Interruption
    ) -> None:
        self._cluster, self._training = config.cluster, training
        self._steps = config.train.steps
        self._screen, self._interruption = screen, interruption
        self._dropped = 0
        self._session: _Session

    def begin(self) -> None:
        self._channel = Channel(telling_tasks(self._cluster))
        with tf.control_dependencies([self._training.train_op]):
            self._finished = self._channel.is_finished()

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        self._session = session
        self._screen.line(f"trains from step {session.run(tf.compat.v1.train.get_global_step())}")

    def record(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends metrics to the chief."""
        values = {f"train/{name}": value for name, value in metrics.items()}
        shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in self._training.values)
        self._screen.line(f"step {step}/{self._steps}  {shown}")
        if not self._channel.send(self._session, own_name(self._cluster), values, step):
            self._dropped += 1

    def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._finished)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            run_context.request_stop()

    def end(self, session: _Session) -> None:
        if self._dropped:
            self._screen.line(f"{self._dropped} records were dropped: the chief took none for long")
        if not self._interruption.received():
            self._channel.end(session, own_name(self._cluster))
