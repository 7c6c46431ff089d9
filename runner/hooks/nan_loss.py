"""Raises, stops or rolls back when the loss is NaN or infinite, and finds such variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from runner.config.choices import NonFinite
from runner.errors import NonFiniteLossError
from runner.hooks.scheduled import Session, SessionRunArgs, SessionRunContext, SessionRunValues
from runner.internals.tensorflow import assign_in_session


@dataclass(frozen=True)
class NanLossPolicy:
    """The reaction to a loss that is NaN or infinite.

    Attributes:
      action: `raise`, the default, `stop` (training ends normally) or `rollback`.
      rollbacks: how many rollbacks come before an error, by default 3; with `count`, over the
        whole run, however often it resumes.
      scale: a float32 scalar by which the learning rate is multiplied; None, the default, leaves
        the rate as it is.
      factor: multiplies `scale` at each rollback, by default 0.5.
      count: an int32 scalar that checkpoints keep, in which rollbacks are counted, so that a
        resumed run continues to count; None, the default, counts for the life of the hook.

    Raises:
      ValueError: when `action` is something else.
    """

    action: NonFinite | str = "raise"
    rollbacks: int = 3
    scale: tf.Variable | None = None
    factor: float = 0.5
    count: tf.Variable | None = None

    def __post_init__(self) -> None:
        if isinstance(self.action, str) and self.action not in NonFinite.__members__:
            choices = ", ".join(NonFinite.__members__)
            raise ValueError(f"no action {self.action!r}; choices: {choices}")


class NanLossHook(tf.compat.v1.train.SessionRunHook):
    """Acts at the first step whose loss is NaN or infinite.

    Unlike `tf.compat.v1.train.NanTensorHook` it reports the step, notices infinity too, and can
    roll back. As the first of the hooks it keeps the others from recording or saving that step,
    unless the action is `stop`.

    A rollback is TensorFlow's recovery: the session is abandoned as after a preemption, and
    `tf.compat.v1.train.MonitoredSession` creates a new one from the last checkpoint, or from the
    beginning without a checkpoint; every hook's `after_create_session` is called. A
    `CheckpointHook` with a `FiniteCheck` saves only finite values.

    Args:
      loss: the training loss, a scalar.
      step: the global step after the train op has run.
      checkpoints: where the run saves, for the message.
      remedy: what to try, for the message.
      policy: whether to raise, stop or roll back; by default it raises.
      warn: takes a line about a stop or a rollback, by default TensorFlow's warning log.
      changed: called after a rollback has changed values of a session; by default nothing.
    """

    def __init__(
        self,
        loss: tf.Tensor,
        step: tf.Tensor,
        checkpoints: Path,
        remedy: str,
        policy: NanLossPolicy | None = None,
        warn: Callable[[str], None] = tf.compat.v1.logging.warning,
        changed: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._changed = changed
        self._loss, self._step_after = loss, step
        self._checkpoints, self._remedy, self._warn = checkpoints, remedy, warn
        self._policy = policy or NanLossPolicy()
        self._done = 0
        # The values that a rollback sets in the next session, in place of those in the checkpoint.
        self._settings: list[tuple[tf.Variable, float]] = []

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Sets the scale and the count after a rollback; otherwise reads the count."""
        if not self._settings and self._policy.count is not None:
            self._done = int(session.run(self._policy.count))
        if self._settings:
            assign_in_session(session, self._settings)
            self._changed(session)
        self._settings = []

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches loss and step."""
        return SessionRunArgs((self._loss, self._step_after))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Acts when the loss is NaN or infinite.

        Raises:
          NonFiniteLossError: when the action is `raise`, or no rollback is left.
          tf.errors.AbortedError: to roll back.
        """
        loss, step = run_values.results
        if math.isfinite(loss):
            return
        state = f"the loss is {loss} at step {step}"
        last = tf.train.latest_checkpoint(str(self._checkpoints))
        action = NonFinite(self._policy.action)
        if action is NonFinite.stop:
            self._warn(f"training stops because {state}")
            run_context.request_stop()
        elif action is NonFinite.rollback and self._done < self._policy.rollbacks:
            self._roll_back(run_context.session, f"{state}: back to {last or 'the beginning'}")
        else:
            again = f", after {self._done} rollbacks" if self._done else ""
            saved = f"the last checkpoint before it is {last}"
            raise NonFiniteLossError.of(
                f"training stopped because {state}{again}",
                saved if last else "no checkpoint was saved before it",
                self._remedy,
            )

    def _roll_back(self, session: Session, message: str) -> None:
        self._done += 1
        message += f" ({self._done} of at most {self._policy.rollbacks} times)"
        if self._policy.count is not None:
            self._settings.append((self._policy.count, self._done))
        if self._policy.scale is not None:
            scale = float(session.run(self._policy.scale)) * self._policy.factor
            self._settings.append((self._policy.scale, scale))
            message += f", learning rate times {scale:g}"
        self._warn(message)
        raise tf.errors.AbortedError(None, None, message)


class FiniteCheck:
    """Finds variables that hold NaN or infinity; its constructor adds the operations.

    A sum of squares takes one operation for a variable, where a check of each value takes three.

    Args:
      variables: name -> variable; those that are not floating-point are left out.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        self._variables = {
            name: value for name, value in variables.items() if value.dtype.is_floating
        }
        read = tf.compat.v1.get_default_graph().as_graph_element
        with tf.name_scope("finite_check"):
            # Each variable has an operation that reads it, and a conversion would add another.
            self._squares = {n: tf.nn.l2_loss(read(value)) for n, value in self._variables.items()}

    def non_finite(self, session: Session) -> list[str]:
        """Returns the names of the variables that hold NaN or infinity."""
        squares = session.run(self._squares)
        # A sum of finite squares may overflow.
        suspects = {n: self._variables[n] for n, sum_ in squares.items() if not np.isfinite(sum_)}
        values = session.run(suspects) if suspects else {}
        return [name for name, value in values.items() if not np.isfinite(value).all()]
