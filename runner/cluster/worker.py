"""The worker of a cluster, which trains and leaves everything else to the chief."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from runner.cluster.channel import Channel, State, ready_flags
from runner.cluster.sessions import (
    ClusterTask,
    ClusterWorkerSessionCreator,
    worker_graph,
)
from runner.cluster.task_replica import ClusterReplica
from runner.config.choices import NonFinite
from runner.config.cluster_spec import announced_name
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import ClusterError, NonFiniteLossError
from runner.graph.built_graph import BuiltGraph, Training
from runner.graph.graph_spec import local_init_op
from runner.hooks import MetricsHook, StopWhenHook

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session

_POLL_SECONDS = 0.5


def run_worker(config: RunConfig, screen: Screen) -> None:
    """Trains until the chief has saved the last step.

    After a signal it ends with its step.

    Raises:
      ClusterError: when other tasks do not come in time, or the chief has other settings.
      ConfigError: when the training data end.
      NonFiniteLossError: when the loss of this worker is NaN or infinite, unless
        `train.non_finite.action` is `stop`, for which it asks the chief.
      InterruptedRunError: after a signal.
      UserCodeError: when an operation of the experiment's own code raises an error.
    """
    replica = ClusterReplica(config.cluster)
    with worker_graph(config, screen, replica) as (task, built):
        train_worker(task, built)


def train_worker(task: ClusterTask, built: BuiltGraph) -> None:
    """Trains a graph.

    Raises:
      RunnerError: see `run_worker`.
    """
    training = built.training
    assert training is not None  # `worker_graph` builds it.
    with built.graph.as_default():
        # A worker prepares its own input and local variables, and the chief all others.
        scaffold = tf.compat.v1.train.Scaffold(
            local_init_op=local_init_op(built.scaffold, training.input_initializer),
            ready_for_local_init_op=missing_of_model(task.cluster.ps),
        )
        creator = ClusterWorkerSessionCreator(task, scaffold)
        hooks = [*_hooks(task, training, creator.channel), *built.graph_hooks]
        task.train(training, creator, hooks)


def _hooks(task: ClusterTask, training: Training, channel: Channel) -> list[_Hook]:
    train = task.config.train
    chief = ChiefHook(task, training, channel)

    def record(metrics: Mapping[str, float], step: int) -> None:
        shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in training.values)
        task.screen.line(f"step {step}/{train.steps}  {shown}")
        chief.record(metrics, step)

    values = {**training.values, "input_seconds": training.input_seconds}
    return [
        chief,
        MetricsHook(values, training.step, train.log_every, record),
        StopWhenHook(task.interruption.received),
    ]


def missing_of_model(servers: int) -> tf.Tensor:
    """Returns the names of uninitialised variables and of unset ready flags, strings [n]."""
    flags = ready_flags(servers)
    unset = [tf.logical_not(flag.value) for flag in flags]
    return tf.concat(
        [
            tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
            tf.boolean_mask([flag.name for flag in flags], unset),
        ],
        0,
    )


class ChiefHook(_Hook):
    """Sends this worker's metrics to the chief, and follows it.

    At the last step, or when the chief has finished before, the worker waits until the last
    checkpoint is saved: a chief that dies before that resumes from an earlier step, and needs its
    workers. When the chief initialises the model again, the session is aborted, and the next one
    waits until the model is ready.

    When this worker's loss is NaN or infinite, the hook fails, or asks the chief to end the
    training. It is the first hook, so that the others do not record that step if it fails.
    """

    def __init__(
        self,
        task: ClusterTask,
        training: Training,
        channel: Channel,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._task, self._training, self._channel = task, training, channel
        self._name, self._last_step = announced_name(task.cluster), task.config.train.steps
        self._clock, self._sleep = clock, sleep
        self._asked = self._over = False
        self._session: _Session

    def begin(self) -> None:
        """Adds the operations that are read with every step."""
        self._step = tf.compat.v1.train.get_global_step().read_value()
        with tf.control_dependencies([self._training.train_op]):
            self._state_after = self._channel.read_state()

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Checks whether training is already over, so that no step is taken."""
        self._session, self._asked = session, False
        step = int(session.run(self._step))
        self._task.screen.line(f"trains from step {step}")
        at_end = self._is_at_end(self._channel.state(session), step)
        self._over = at_end and self._is_over(session)
        if self._over:
            coord.request_stop()

    def record(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends metrics to the chief."""
        values = {f"train/{name}": value for name, value in metrics.items()}
        self._channel.send(self._session, self._name, values, step=step)

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Requests the loss, the step and the announcements of the chief.

        Raises:
          StopIteration: when training was over before the step, as in a session that replaces a
            lost one; a monitored session then ends normally.
        """
        if self._over:
            raise StopIteration("training is over")
        loss, step = self._training.values["loss"], self._training.step
        return _RunArgs((loss, step, self._state_after))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Stops when training is over.

        Raises:
          tf.errors.AbortedError: when the chief initialises the model again.
          ClusterError: when training is over, and the chief does not save it in time.
          NonFiniteLossError: when the loss is not finite, unless the action is `stop`.
        """
        loss, step, state = run_values.results
        if not math.isfinite(loss):
            self._handle_non_finite(f"this worker's loss is {loss} at step {step}")
        if self._is_at_end(state, step) and self._is_over(run_context.session):
            run_context.request_stop()

    def end(self, session: _Session) -> None:
        """Announces that this worker has ended, unless it is to be resumed later."""
        if not self._task.interruption.received():
            self._channel.ended[self._name].set(session)

    def _handle_non_finite(self, state: str) -> None:
        if self._task.config.train.non_finite.action is not NonFinite["stop"]:
            raise NonFiniteLossError.of(
                state,
                "its gradients have reached the parameter servers",
                "look at the data and the learning rate; the chief's checkpoints are finite",
            )
        if not self._asked:
            self._asked = True
            self._task.screen.line(f"asks the chief to end the training: {state}")
            self._channel.stop.set(self._session)

    def _is_over(self, session: _Session) -> bool:
        """Waits for the last checkpoint; returns False if training continues after all."""
        limit = self._task.cluster.max_wait_secs
        deadline = self._clock() + limit
        while True:
            self._task.interruption.check()
            state = self._channel.state(session)
            if not self._is_at_end(state, int(session.run(self._step))):
                return False
            if state.saved:
                return True
            if self._clock() >= deadline:
                raise ClusterError.of(
                    f"training is over, and not saved after {limit:g} s",
                    "the chief evaluates and saves the last step, and then announces it",
                    "look at the chief's log; a larger cluster.max_wait_secs waits longer",
                )
            self._sleep(_POLL_SECONDS)

    def _is_at_end(self, state: State, step: int) -> bool:
        if not state.ready:
            raise tf.errors.AbortedError(None, None, "the chief initialises the model again")
        return bool(state.finished) or step >= self._last_step
