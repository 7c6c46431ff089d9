"""A run as one of the workers: it trains, and leaves everything else to the chief."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import tensorflow as tf

from runner.cluster.agreement import Agreement
from runner.cluster.channel import ready_flags
from runner.cluster.server import naming_the_missing, session_config, start_server
from runner.cluster.session_creators import ClusterWorkerSessionCreator
from runner.cluster.worker_hooks import ChiefHook, FiniteLossHook
from runner.config import RunConfig
from runner.errors import ConfigError
from runner.experiment import BuiltGraph, Training
from runner.graph import build_graph
from runner.hooks import MetricsHook, StopWhenHook
from runner.input_pipeline import input_ended
from runner.interruption import Interruption
from runner.screen import Screen
from runner.session.monitored_session import MonitoredSession

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
# What a worker needs to end in good order, in seconds.
_END_SECONDS = 2.0


def run_worker(config: RunConfig, screen: Screen) -> None:
    """Trains until the chief has saved the last step.

    After a signal an asynchronous worker ends with its step. The others of a synchronous run need
    its gradients to end theirs: such a worker goes on until the chief has left, or its own
    `session.grace_seconds` are nearly over.

    Raises:
      ClusterError: when others do not come in time, or the chief has other settings.
      ConfigError: when the training data end.
      NonFiniteLossError: when the loss of this worker is NaN or infinite, unless
        `train.non_finite.action` is `stop`, for which it asks the chief.
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
    synchronous = training.synchronous

    def leaves() -> bool:
        return is_leaving(interruption.remaining(), synchronous=synchronous is not None)

    with built.graph.as_default():
        creator = ClusterWorkerSessionCreator(
            config.cluster,
            target,
            _scaffold(training, config.cluster.ps),
            interruption.prompt,
            say=screen.line,
            agree=Agreement(config, target, session_config(config.cluster)).check,
        )
        chief = ChiefHook(config.cluster, config.train.steps, training, screen.line, interruption)
        hooks: list[_Hook] = [
            FiniteLossHook(training, config.train.non_finite.action, chief.ask_to_stop),
            MetricsHook(
                {**training.values, "input_seconds": training.input_seconds},
                training.step,
                config.train.log_every,
                _shown(config, training, screen, chief.record),
            ),
            chief,
            StopWhenHook(leaves),
        ]
        if synchronous is not None:
            hooks.insert(0, synchronous.hook())
        with MonitoredSession(creator, hooks) as session:
            while not session.should_stop():
                try:
                    session.run(training.train_op)
                except tf.errors.OutOfRangeError as error:
                    # MonitoredSession would take it for an orderly end.
                    raise ConfigError(input_ended(config)) from error


def is_leaving(remaining: float | None, *, synchronous: bool) -> bool:
    """Whether a worker ends with its step.

    Args:
      remaining: seconds that are left of its grace period; None before a signal.
      synchronous: whether others wait for its gradients.
    """
    return remaining is not None and (not synchronous or remaining <= _END_SECONDS)


def _shown(
    config: RunConfig,
    training: Training,
    screen: Screen,
    record: Callable[[Mapping[str, float], int], None],
) -> Callable[[Mapping[str, float], int], None]:
    """Returns what records metrics and prints those of the training step."""

    def show_and_record(metrics: Mapping[str, float], step: int) -> None:
        shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in training.values)
        screen.line(f"step {step}/{config.train.steps}  {shown}")
        record(metrics, step)

    return show_and_record


def _scaffold(training: Training, servers: int) -> tf.compat.v1.train.Scaffold:
    """Returns what prepares a worker's session: its own input and local variables, no others."""
    return tf.compat.v1.train.Scaffold(
        local_init_op=tf.group(
            tf.compat.v1.train.Scaffold.default_local_init_op(), training.input_initializer
        ),
        ready_for_local_init_op=missing_of_model(servers),
    )


def missing_of_model(servers: int) -> tf.Tensor:
    """Returns the names of what a model lacks until its chief has made it ready, strings [n]."""
    flags = ready_flags(servers)
    unset = [tf.logical_not(each.value) for each in flags]
    return tf.concat(
        [
            tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
            tf.boolean_mask([each.name for each in flags], unset),
        ],
        0,
    )
