"""Ends the run, or goes back to a checkpoint, when the loss is no number any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.choices import NonFinite
from runner.errors import NonFiniteLossError, Problem

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues


class NanLossHook(tf.compat.v1.train.SessionRunHook):
    """Acts at the first step whose loss is NaN or infinite.

    Unlike `tf.compat.v1.train.NanTensorHook` it says at which step, heeds infinity too, and can go
    back. As the first of the hooks it keeps the others from recording or saving that step, unless
    the action is `stop`.

    Going back is TensorFlow's own recovery: the session is abandoned as after a preemption, and
    `tf.compat.v1.train.MonitoredSession` makes a new one from the last checkpoint, or from the
    beginning where there is none; every hook learns of it by `after_create_session`. A
    `CheckpointHook` with a `FiniteCheck` sees to it that what was saved is finite.
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
        say: Callable[[str], None] = tf.compat.v1.logging.warning,
        count: tf.Variable | None = None,
    ) -> None:
        """Stores its arguments.

        Args:
          loss: the training loss, a scalar.
          step: the global step after the train op has run.
          checkpoints: where the run saves, for the message.
          remedy: what to try, for the message.
          action: `raise`, `stop` (the training ends in good order) or `rollback`.
          rollbacks: how often it goes back before it raises.
          scale: a float32 scalar by which the learning rate is multiplied; None leaves it alone.
          factor: multiplies `scale` at each rollback.
          say: is given a line about a stop or a rollback.
          count: an int32 scalar that checkpoints keep, in which rollbacks are counted, so that a
            resumed run counts on; None counts for the life of this hook.

        Raises:
          ValueError: when there is no such action.
        """
        name = action.value if isinstance(action, NonFinite) else action
        if name not in NonFinite.__members__:
            raise ValueError(f"no action {name!r}; choices: {', '.join(NonFinite.__members__)}")
        self._action = name
        self._loss, self._step_after = loss, step
        self._checkpoints, self._remedy, self._say = checkpoints, remedy, say
        self._rollbacks, self._scale, self._factor = rollbacks, scale, factor
        self._gone_back, self._count = 0, count
        self._went_back = False
        self._next_scale: float | None = None

    def begin(self) -> None:
        """Adds the operations that set the scale and the count."""
        if self._count is not None:
            self._new_count = tf.compat.v1.placeholder(tf.int32, [])
            self._set_count = self._count.assign(self._new_count).op
        if self._scale is not None:
            self._new_scale = tf.compat.v1.placeholder(tf.float32, [])
            self._set_scale = self._scale.assign(self._new_scale).op

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Lowers the scale and counts after a rollback: the checkpoint has brought its own."""
        if self._count is not None:
            if self._went_back:
                session.run(self._set_count, {self._new_count: self._gone_back})
            else:
                self._gone_back = int(session.run(self._count))
        self._went_back = False
        if self._next_scale is not None:
            session.run(self._set_scale, {self._new_scale: self._next_scale})
            self._next_scale = None

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for loss and step."""
        return _RunArgs((self._loss, self._step_after))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Acts when the loss is NaN or infinite.

        Raises:
          NonFiniteLossError: when the action is `raise`, or `rollback` once too often.
          tf.errors.AbortedError: to go back.
        """
        loss, step = run_values.results
        if math.isfinite(loss):
            return
        last = tf.train.latest_checkpoint(str(self._checkpoints))
        if self._action == "stop":
            self._say(f"training stops because the loss is {loss} at step {step}")
            run_context.request_stop()
            return
        if self._action == "rollback" and self._gone_back < self._rollbacks:
            self._gone_back += 1
            self._went_back = True
            message = (
                f"the loss is {loss} at step {step}: back to {last or 'the beginning'} "
                f"({self._gone_back} of at most {self._rollbacks} times)"
            )
            if self._scale is not None:
                scale = float(run_context.session.run(self._scale)) * self._factor
                self._next_scale = scale
                message += f", learning rate times {scale:g}"
            self._say(message)
            raise tf.errors.AbortedError(None, None, message)
        again = f", after {self._gone_back} rollbacks" if self._gone_back else ""
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
    """One operation over all floating-point variables, added to the graph when it is made."""

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        """Adds the operation.

        Args:
          variables: name -> variable; those that are not floating-point are left out.
        """
        floating = {name: each for name, each in variables.items() if each.dtype.is_floating}
        self._names = tuple(floating)
        with tf.name_scope("finite_check"):
            self._finite = [tf.reduce_all(tf.math.is_finite(each)) for each in floating.values()]

    def non_finite(self, session: tf.compat.v1.Session) -> list[str]:
        """Returns the names of the variables that hold NaN or infinity."""
        finite = session.run(self._finite)
        return [name for name, each in zip(self._names, finite, strict=True) if not each]
