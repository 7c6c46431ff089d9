"""Ends the run when the loss is no number any more."""

from __future__ import annotations

import math
from pathlib import Path

import tensorflow as tf

from runner.errors import NonFiniteLossError, Problem


class NanLossHook(tf.compat.v1.train.SessionRunHook):
    """Raises at the first step whose loss is NaN or infinite.

    Unlike `tf.compat.v1.train.NanTensorHook` it says at which step, and stops at infinity too. As
    the first of the hooks it keeps the others from recording or saving that step.
    """

    def __init__(self, loss: tf.Tensor, step: tf.Tensor, checkpoints: Path, remedy: str) -> None:
        """Stores its arguments.

        Args:
          loss: the training loss, a scalar.
          step: the global step after the train op has run.
          checkpoints: where the run saves, for the message.
          remedy: what to try, for the message.
        """
        self._loss, self._step_after = loss, step
        self._checkpoints, self._remedy = checkpoints, remedy

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        """Asks for loss and step."""
        return tf.compat.v1.train.SessionRunArgs((self._loss, self._step_after))

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Raises NonFiniteLossError when the loss is NaN or infinite."""
        loss, step = run_values.results
        if math.isfinite(loss):
            return
        last = tf.train.latest_checkpoint(str(self._checkpoints))
        raise NonFiniteLossError(
            Problem(
                f"training stopped because the loss is {loss} at step {step}",
                f"the last checkpoint before it is {last}"
                if last
                else "no checkpoint was saved before it",
                self._remedy,
            )
        )
