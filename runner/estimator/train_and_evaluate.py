"""`tf.estimator.train_and_evaluate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from runner.estimator.estimator import Estimator
from runner.estimator.train_and_eval_specs import EvalSpec, TrainSpec


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]]:
    """`tf.estimator.train_and_evaluate` in one process.

    Evaluates when a checkpoint is saved, `throttle_secs` after the last evaluation at the earliest,
    and at the end, and calls the exporters after each evaluation.

    Returns:
      The last metrics, None where nothing was trained, and what the exporters returned.

    Raises:
      TypeError: when a spec is not one.
      ValueError: when checkpoints are turned off.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must have type `Estimator`. Got: {type(estimator)}")
    if not isinstance(eval_spec, EvalSpec):
        raise TypeError(f"`eval_spec` must have type `EvalSpec`. Got: {type(eval_spec)}")
    if not isinstance(train_spec, TrainSpec):
        raise TypeError(f"`train_spec` must have type `TrainSpec`. Got: {type(train_spec)}")
    evaluations = _Evaluations(estimator, eval_spec, train_spec.max_steps)
    estimator.train(
        train_spec.input_fn,
        hooks=train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=[*train_spec.saving_listeners, evaluations],
    )
    return evaluations.metrics, evaluations.exported


class _Evaluations(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports each saved checkpoint that is not too soon after the last."""

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator, self._spec, self._max_steps = estimator, spec, max_steps
        self.metrics: dict[str, Any] | None = None
        self.exported: list[Any] = []
        self._step: int | None = None  # Of the last evaluation, or of the first checkpoint.
        self._since = time.monotonic()

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluates, unless the checkpoint is the first, from before training, or too early."""
        if self._step is None:
            self._step = global_step_value
        elif time.monotonic() - self._since >= self._spec.throttle_secs:
            over = self._max_steps is not None and global_step_value >= self._max_steps
            self._evaluate(global_step_value, final=over)

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluates the last checkpoint, unless that is done."""
        if global_step_value != self._step:
            self._evaluate(global_step_value, final=True)

    def _evaluate(self, step: int, *, final: bool) -> None:
        estimator, spec = self._estimator, self._spec
        checkpoint = estimator.latest_checkpoint()
        self.metrics = estimator.evaluate(
            spec.input_fn, spec.steps, spec.hooks, checkpoint, spec.name
        )
        self.exported = [
            each.export(
                estimator=estimator,
                export_path=str(Path(estimator.model_dir, "export", each.name)),
                checkpoint_path=checkpoint,
                eval_result=self.metrics,
                is_the_final_export=final,
            )
            for each in spec.exporters
        ]
        self._step, self._since = step, time.monotonic()
