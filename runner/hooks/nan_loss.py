"""Ends the run, or goes back to a checkpoint, when the loss is no number any more."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config import NonFinite
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
        record: Path | None = None,
    ) -> None:
        """Stores its arguments.

        Args:
          loss: the training loss, a scalar.
          step: the global step after the train op has run.
          checkpoints: where the run saves, for the message.
          remedy: what to try, for the message.
          action: `raise`, `stop` (the training ends in good order) or `rollback`.
          rollbacks: how often this hook goes back before it raises.
          scale: a float32 scalar by which the learning rate is multiplied; None leaves it alone.
          factor: multiplies `scale` at each rollback.
          say: is given a line about a stop or a rollback.
          record: the file in which the number of rollbacks and the scale outlive the process, so
            that a resumed run counts on; None begins anew with every process.

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
        self._gone_back = 0
        self._next_scale: float | None = None
        self._record = record

    def begin(self) -> None:
        """Adds the operation that sets the scale, and takes up what an earlier process recorded."""
        if self._record is not None and self._record.is_file():
            recorded = json.loads(self._record.read_text())
            self._gone_back, self._next_scale = recorded["rollbacks"], recorded["scale"]
        if self._scale is not None:
            self._new_scale = tf.compat.v1.placeholder(tf.float32, [])
            self._set_scale = self._scale.assign(self._new_scale).op

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Lowers the scale after a rollback: the checkpoint has brought its own."""
        if self._next_scale is not None and self._scale is not None:
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
            message = (
                f"the loss is {loss} at step {step}: back to {last or 'the beginning'} "
                f"({self._gone_back} of at most {self._rollbacks} times)"
            )
            if self._scale is not None:
                scale = float(run_context.session.run(self._scale)) * self._factor
                self._next_scale = scale
                message += f", learning rate times {scale:g}"
            self._write_record()
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

    def _write_record(self) -> None:
        """Keeps what a process that is killed before the next checkpoint would forget."""
        if self._record is not None:
            temporary = self._record.with_suffix(".tmp")
            recorded = {"rollbacks": self._gone_back, "scale": self._next_scale}
            temporary.write_text(json.dumps(recorded))
            temporary.replace(self._record)
