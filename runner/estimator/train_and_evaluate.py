"""`tf.estimator.train_and_evaluate`, with its arguments `TrainSpec` and `EvalSpec`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from runner.estimator.estimator import Estimator
from runner.estimator.exporters import Exporter
from runner.estimator.run_config import RunConfig
from runner.estimator.spec import check_positive
from runner.training.evaluation import step_of


class TrainSpec(NamedTuple):
    """`tf.estimator.TrainSpec`: the arguments of `Estimator.train`.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      max_steps: the global step at which training ends; None, the default, never ends it.
      hooks: hooks of the training; none by default.
      saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s; none by default.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Any = ()
    saving_listeners: Any = ()


class EvalSpec(NamedTuple):
    """`tf.estimator.EvalSpec`: the arguments of `Estimator.evaluate`, and the exporters.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      steps: how many batches are evaluated, by default 100; None evaluates all.
      name: distinguishes this evaluation from others, in the name of its directory.
      hooks: hooks of the evaluation; none by default.
      exporters: one or several, called after each evaluation; none by default.
      start_delay_secs: how long an evaluator of a cluster waits before it starts, by default 120.
      throttle_secs: minimum seconds between evaluations, by default 600.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Any = ()
    exporters: Any = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]]:
    """`tf.estimator.train_and_evaluate`, in one process or as a task of the cluster in `TF_CONFIG`.

    Evaluates when a checkpoint is saved, `throttle_secs` after the last evaluation at the earliest,
    and at the end, and calls the exporters after each evaluation. In a cluster the evaluator does
    so until `max_steps`, or the `master` if that is the chief's name; a parameter server never
    returns.

    Returns:
      The last metrics (None if nothing was trained or evaluated here), and the results of the
      exporters.

    Raises:
      ValueError: when a number of steps is not positive, exporters share a name, or checkpoints are
        turned off.
    """
    check_positive(steps=eval_spec.steps)
    evaluations = _Evaluations(estimator, eval_spec, train_spec.max_steps)
    config = estimator.config
    if config.task_type == "evaluator":
        evaluations.follow()
        return evaluations.metrics, evaluations.exported
    server = _server(config)  # Serves as long as it is referenced.
    if server is not None and config.task_type == "ps":
        server.join()
    listeners = list(train_spec.saving_listeners or ()) if config.is_chief else []
    if not config.cluster_spec or config.task_type == "master":
        listeners.append(evaluations)
    if not config.is_chief:
        longest = config.experimental_max_worker_delay_secs
        time.sleep(min(60 if longest is None else longest, 5 * (config.task_id + 1)))
    estimator.train(
        train_spec.input_fn,
        hooks=train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=listeners,
    )
    return evaluations.metrics, evaluations.exported


def _server(config: RunConfig) -> tf.distribute.Server | None:
    """Starts the server of this task; None outside a cluster of several tasks."""
    if not config.master:
        return None
    return tf.distribute.Server(
        config.cluster_spec,
        job_name=config.task_type,
        task_index=config.task_id,
        protocol=config.protocol,
    )


class _Evaluations(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports each saved checkpoint that is not too soon after the last."""

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator, self._spec, self._max_steps = estimator, spec, max_steps
        self._exporters = _exporters(spec.exporters)
        self.metrics: dict[str, Any] | None = None
        self.exported: list[Any] = []
        # The step of the last evaluation, or of the first checkpoint.
        self._step: int | None = None
        self._since = time.monotonic()

    def follow(self) -> None:
        """Evaluates the checkpoints of other processes, up to the checkpoint of the last step."""
        time.sleep(self._spec.start_delay_secs)
        last, step = self._max_steps or math.inf, -1
        while step < last:
            checkpoint = self._estimator.latest_checkpoint()
            if checkpoint is not None and step_of(checkpoint) != self._step:
                step = step_of(checkpoint)
                self._evaluate(checkpoint, final=step >= last)
            if step < last:
                # Looks for a checkpoint at most once a second.
                time.sleep(max(self._spec.throttle_secs + self._since - time.monotonic(), 1.0))

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluates, unless this is the checkpoint from before training, or it is too early."""
        if self._step is None:
            self._step = global_step_value
        elif time.monotonic() - self._since >= self._spec.throttle_secs:
            final = self._max_steps is not None and global_step_value >= self._max_steps
            self._evaluate(self._estimator.latest_checkpoint(), final=final)

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluates the last checkpoint, unless `after_save` did."""
        if global_step_value != self._step:
            self._evaluate(self._estimator.latest_checkpoint(), final=True)

    def _evaluate(self, checkpoint: str | None, *, final: bool) -> None:
        estimator, spec = self._estimator, self._spec
        assert checkpoint is not None  # It was just saved.
        self.metrics = estimator.evaluate(
            spec.input_fn, spec.steps, spec.hooks, checkpoint, spec.name
        )
        self.exported = [
            exporter.export(
                estimator=estimator,
                export_path=str(Path(estimator.model_dir, "export", exporter.name)),
                checkpoint_path=checkpoint,
                eval_result=self.metrics,
                is_the_final_export=final,
            )
            for exporter in self._exporters
        ]
        self._step, self._since = step_of(checkpoint), time.monotonic()


def _exporters(exporters: Any) -> tuple[Exporter, ...]:
    instances = (exporters,) if isinstance(exporters, Exporter) else tuple(exporters or ())
    names = [exporter.name for exporter in instances]
    if len(set(names)) < len(names):
        raise ValueError(f"`exporters` must have unique names. All exporter names: {names}")
    return instances
