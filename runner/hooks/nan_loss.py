"""Raises, stops or rolls back when the loss is NaN or infinite, and finds such variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from runner.config.choices import NonFinite
from runner.errors import NonFiniteLossError, Problem
from runner.hooks.scheduled import RunArgs, RunContext, RunValues, Session


class NanLossHook(tf.compat.v1.train.SessionRunHook):
    """Acts at the first step whose loss is NaN or infinite.

    Unlike `tf.compat.v1.train.NanTensorHook` it reports the step, notices infinity too, and can
    roll back. As the first of the hooks it keeps the others from recording or saving that step,
    unless the action is `stop`.

    A rollback is TensorFlow's own recovery: the session is abandoned as after a preemption, and
    `tf.compat.v1.train.MonitoredSession` makes a new one from the last checkpoint, or from the
    beginning if there is none; every hook's `after_create_session` is called. A `CheckpointHook`
    with a `FiniteCheck` saves only finite values.

    Args:
      loss: the training loss, a scalar.
      step: the global step after the train op has run.
      checkpoints: where the run saves, for the message.
      remedy: what to try, for the message.
      action: `raise`, the default, `stop` (training ends in good order) or `rollback`.
      rollbacks: how many rollbacks come before an error, by default 3.
      scale: a float32 scalar by which the learning rate is multiplied; None, the default, leaves
        the rate as it is.
      factor: multiplies `scale` at each rollback, by default 0.5.
      warn: takes a line about a stop or a rollback, by default TensorFlow's warning log.
      count: an int32 scalar that checkpoints keep, in which rollbacks are counted, so that a
        resumed run continues to count; None, the default, counts for the life of this hook.

    Raises:
      ValueError: when `action` is something else.
    """

    def __init__(
        self,
        loss: tf.Tensor,
        step: tf.Tensor,
        checkpoints: Path,
        remedy: str,
        action: NonFinite | str = "raise",
        rollbacks: int = 3,
        scale: tf.Variable | None = None,
        factor: float = 0.5,
        warn: Callable[[str], None] = tf.compat.v1.logging.warning,
        count: tf.Variable | None = None,
    ) -> None:
        name = action.value if isinstance(action, NonFinite) else action
        if name not in NonFinite.__members__:
            raise ValueError(f"no action {name!r}; choices: {', '.join(NonFinite.__members__)}")
        self._action = name
        self._loss, self._step_after = loss, step
        self._checkpoints, self._remedy, self._warn = checkpoints, remedy, warn
        self._rollbacks, self._scale, self._factor = rollbacks, scale, factor
        self._done, self._count = 0, count
        self._rolled_back = False
        self._next_scale: float | None = None

    def begin(self) -> None:
        """Adds the operations that set the scale and the count."""
        if self._count is not None:
            self._new_count = tf.compat.v1.placeholder(tf.int32, [])
            self._set_count = self._count.assign(self._new_count).op
        if self._scale is not None:
            self._new_scale = tf.compat.v1.placeholder(tf.float32, [])
            self._set_scale = self._scale.assign(self._new_scale).op

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Sets the scale and the count after a rollback, in place of those in the checkpoint."""
        if self._count is not None:
            if self._rolled_back:
                session.run(self._set_count, {self._new_count: self._done})
            else:
                self._done = int(session.run(self._count))
        self._rolled_back = False
        if self._next_scale is not None:
            session.run(self._set_scale, {self._new_scale: self._next_scale})
            self._next_scale = None

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Fetches loss and step."""
        return RunArgs((self._loss, self._step_after))

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Acts when the loss is NaN or infinite.

        Raises:
          NonFiniteLossError: when the action is `raise`, or no rollback is left.
          tf.errors.AbortedError: to roll back.
        """
        loss, step = run_values.results
        if math.isfinite(loss):
            return
        last = tf.train.latest_checkpoint(str(self._checkpoints))
        if self._action == "stop":
            self._warn(f"training stops because the loss is {loss} at step {step}")
            run_context.request_stop()
            return
        if self._action == "rollback" and self._done < self._rollbacks:
            self._done += 1
            self._rolled_back = True
            message = (
                f"the loss is {loss} at step {step}: back to {last or 'the beginning'} "
                f"({self._done} of at most {self._rollbacks} times)"
            )
            if self._scale is not None:
                scale = float(run_context.session.run(self._scale)) * self._factor
                self._next_scale = scale
                message += f", learning rate times {scale:g}"
            self._warn(message)
            raise tf.errors.AbortedError(None, None, message)
        again = f", after {self._done} rollbacks" if self._done else ""
        raise NonFiniteLossError(
            Problem(
                f"training stopped because the loss is {loss} at step {step}{again}",
                f"the last checkpoint before it is {last}"
                if last
                else "no checkpoint was saved before it",
                self._remedy,
            )
        )


class FiniteCheck:
    """Finds variables that hold NaN or infinity; its operations are added when it is made.

    Args:
      variables: name -> variable; those that are not floating-point are left out.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        floating = {name: each for name, each in variables.items() if each.dtype.is_floating}
        self._names = tuple(floating)
        with tf.name_scope("finite_check"):
            self._finite = [tf.reduce_all(tf.math.is_finite(each)) for each in floating.values()]

    def non_finite(self, session: Session) -> list[str]:
        """Returns the names of the variables that hold NaN or infinity."""
        finite = session.run(self._finite)
        return [name for name, each in zip(self._names, finite, strict=True) if not each]
