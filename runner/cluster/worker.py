"""A run as one of the workers: it trains, and leaves everything else to the chief."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Agreement, Channel, State, ready_flags
from runner.cluster.replica import ClusterReplica
from runner.cluster.server import naming_the_missing, session_config, start_server
from runner.cluster.session_creators import ClusterWorkerSessionCreator
from runner.cluster.synchronous import SynchronousUpdate
from runner.config.choices import NonFinite
from runner.config.cluster_spec import own_name, telling_tasks
from runner.config.schema import ClusterConfig, RunConfig
from runner.console import Screen
from runner.errors import ClusterError, ConfigError, NonFiniteLossError, Problem
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph, Training
from runner.graph.input_pipeline import input_ended
from runner.hooks import MetricsHook, StopWhenHook
from runner.session.monitored_session import MonitoredSession
from runner.system.signals import Interruption

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
        replica = ClusterReplica(config.cluster)
        built = build_graph(replace(config, hooks={}), "validation", train=True, replica=replica)
        with interruption.deferred(), naming_the_missing(config.cluster):
            _train(config, built, replica.update, server.target, screen, interruption)
        interruption.check()
    screen.line("done")


def _train(
    config: RunConfig,
    built: BuiltGraph,
    synchronous: SynchronousUpdate | None,
    target: str,
    screen: Screen,
    interruption: Interruption,
) -> None:
    training = built.training
    if training is None:
        raise ValueError("the graph was built without a training step")

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


_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session

# How often a worker looks whether the last checkpoint is saved, in seconds.
_LOOK_SECONDS = 0.2


class ChiefHook(tf.compat.v1.train.SessionRunHook):
    """Sends this worker's metrics to the chief, and follows it.

    At the last step, or when the chief has finished before, the worker waits until the last
    checkpoint is saved: a chief that dies before that comes back to an earlier step, and needs its
    workers. When the chief makes the model anew, the session is given up, and another one waits for
    it.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        last_step: int,
        training: Training,
        say: Callable[[str], None],
        interruption: Interruption,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Stores its arguments.

        Args:
          cluster: the resolved cluster.
          last_step: the global step at which training ends.
          training: the training step.
          say: is given a line for people.
          interruption: tells of signals.
          clock: seconds from any origin.
          sleep: waits so many seconds.
        """
        self._cluster, self._name = cluster, own_name(cluster)
        self._last_step, self._training = last_step, training
        self._say, self._interruption = say, interruption
        self._clock, self._sleep = clock, sleep
        self._dropped, self._asked, self._over = 0, False, False
        self._session: _Session

    def begin(self) -> None:
        """Adds what it asks with every step."""
        self._channel = Channel(telling_tasks(self._cluster))
        self._step = tf.compat.v1.train.get_global_step().read_value()
        with tf.control_dependencies([self._training.train_op]):
            self._after = self._channel.state()

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Learns whether training is already over, so that no step is taken."""
        self._session, self._asked = session, False
        step = int(session.run(self._step))
        self._say(f"trains from step {step}")
        self._over = self._is_at_end(self._channel.look(session), step) and self._is_over(session)
        if self._over:
            coord.request_stop()

    def record(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends metrics to the chief."""
        values = {f"train/{name}": value for name, value in metrics.items()}
        if not self._channel.send(self._session, self._name, values, step):
            self._dropped += 1

    def ask_to_stop(self, reason: str) -> None:
        """Asks the chief to end the training, and goes on until it does."""
        if not self._asked:
            self._asked = True
            self._say(f"asks the chief to end the training: {reason}")
            self._channel.ask_to_stop(self._session)

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the step and what the chief says.

        Raises:
          StopIteration: when training was over before the step, as a session finds that was made in
            place of a lost one; a monitored session ends by it in good order.
        """
        if self._over:
            raise StopIteration("training is over")
        after = self._after
        return _RunArgs((self._training.step, after.finished, after.saved, after.ready))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Stops when training is over.

        Raises:
          tf.errors.AbortedError: when the chief makes the model anew.
          ClusterError: when training is over, and the chief does not save it in time.
        """
        step, *state = run_values.results
        if self._is_at_end(State(*state), step) and self._is_over(run_context.session):
            run_context.request_stop()

    def end(self, session: _Session) -> None:
        """Says that this worker has ended, unless it is to go on later."""
        if self._dropped:
            self._say(f"{self._dropped} records were dropped: the chief took none for long")
        if not self._interruption.received():
            self._channel.end(session, self._name)

    def _is_over(self, session: _Session) -> bool:
        """Waits at the end for the last checkpoint; False where training goes on after all."""
        deadline = self._clock() + self._cluster.max_wait_secs
        while True:
            self._interruption.check()
            state = self._channel.look(session)
            if not self._is_at_end(state, int(session.run(self._step))):
                return False
            if state.saved:
                return True
            if self._clock() >= deadline:
                raise ClusterError(
                    Problem(
                        f"training is over, and not saved after {self._cluster.max_wait_secs:g} s",
                        "the chief evaluates and saves the last step, and then says so",
                        "look at the chief's log; a larger cluster.max_wait_secs waits longer",
                    )
                )
            self._sleep(_LOOK_SECONDS)

    def _is_at_end(self, state: State, step: int) -> bool:
        if not state.ready:
            raise tf.errors.AbortedError(None, None, "the chief makes the model anew")
        return bool(state.finished) or step >= self._last_step


class FiniteLossHook(tf.compat.v1.train.SessionRunHook):
    """Acts when this worker's loss is no number any more."""

    def __init__(
        self, training: Training, action: NonFinite, ask_to_stop: Callable[[str], None]
    ) -> None:
        """Stores its arguments.

        Args:
          training: the training step.
          action: `stop`, which asks the chief, or `raise`.
          ask_to_stop: asks the chief to end the training, and is given the reason.
        """
        self._fetched = (training.values["loss"], training.step)
        self._action, self._ask_to_stop = action, ask_to_stop

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for loss and step."""
        return _RunArgs(self._fetched)

    def after_run(self, run_context: _RunContext, run_values: Any) -> None:
        """Acts.

        Raises:
          NonFiniteLossError: unless the action is `stop`.
        """
        loss, step = run_values.results
        if math.isfinite(loss):
            return
        found = f"this worker's loss is {loss} at step {step}"
        if self._action is NonFinite["stop"]:
            self._ask_to_stop(found)
            return
        raise NonFiniteLossError(
            Problem(
                found,
                "its gradients have reached the parameter servers",
                "look at the data and the learning rate; the chief's checkpoints are finite",
            )
        )
