"""`tf.estimator.train_and_evaluate`, with its arguments `TrainSpec` and `EvalSpec`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from runner.estimator.estimator import Estimator
from runner.estimator.exporters import Exporter
from runner.estimator.spec import check_positive, checked_hooks, checked_listeners
from runner.session.session_manager import with_arguments_of


class _Train(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Any = None
    saving_listeners: Any = None


class TrainSpec(_Train):
    """`tf.estimator.TrainSpec`: how to train.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      max_steps: the global step at which training ends; None, the default, never ends it.
      hooks: of the training.
      saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s.

    Raises:
      ValueError: when `max_steps` is not positive.
      TypeError: when another argument is of the wrong type.
    """

    __slots__ = ()

    @with_arguments_of(_Train.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> TrainSpec:
        """Checks the fields."""
        given = _Train(*args, **kwargs)
        _check_input_fn(given.input_fn)
        check_positive(max_steps=given.max_steps)
        hooks = checked_hooks(given.hooks, "`SessionRunHook`")
        listeners = checked_listeners(given.saving_listeners)
        return super().__new__(cls, given.input_fn, given.max_steps, hooks, listeners)


class _Eval(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Any = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class EvalSpec(_Eval):
    """`tf.estimator.EvalSpec`: how to evaluate, and what to export.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      steps: how many batches are evaluated, by default 100; None evaluates all.
      name: distinguishes this evaluation from others, in the name of its directory.
      hooks: of the evaluation.
      exporters: one or several, called after each evaluation.
      start_delay_secs: seconds before an evaluator of a cluster begins, by default 120.
      throttle_secs: seconds between evaluations at least, by default 600.

    Raises:
      ValueError: when a number is out of its bounds, or exporters are named wrongly.
      TypeError: when another argument is of the wrong type.
    """

    __slots__ = ()

    @with_arguments_of(_Eval.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> EvalSpec:
        """Checks the fields."""
        given = _Eval(*args, **kwargs)
        _check_input_fn(given.input_fn)
        check_positive(steps=given.steps)
        if given.name is not None and not isinstance(given.name, str):
            raise TypeError(f"`name` must be string, given: {given.name}")
        for name in ("start_delay_secs", "throttle_secs"):
            if getattr(given, name) < 0:
                raise ValueError(f"Must specify {name} >= 0, given: {getattr(given, name)}")
        exporters = _exporters(given.exporters)
        hooks = checked_hooks(given.hooks, "`SessionRunHook`")
        return super().__new__(cls, *given[:3], hooks, exporters, *given[5:])


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn}")


def _exporters(exporters: Any) -> tuple[Exporter, ...]:
    given = [exporters] if isinstance(exporters, Exporter) else exporters or ()
    if not isinstance(given, Iterable) or not all(isinstance(each, Exporter) for each in given):
        raise TypeError(
            "`exporters` must be an Exporter, an iterable of Exporter, or `None`, found "
            f"{exporters}."
        )
    names = [each.name for each in given]
    listed = f"All exporter names: {names}"
    for name in names:
        if not name:
            raise ValueError(f"An Exporter cannot have a name that is `None` or empty. {listed}")
        if not isinstance(name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {type(name)}")
    if len(set(names)) < len(names):
        raise ValueError(
            "`exporters` must have unique names. Such a name cannot be `None`. " + listed
        )
    return tuple(given)


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
    given: tuple[tuple[str, object, type], ...] = (
        ("estimator", estimator, Estimator),
        ("eval_spec", eval_spec, EvalSpec),
        ("train_spec", train_spec, TrainSpec),
    )
    for name, value, kind in given:
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must have type `{kind.__name__}`. Got: {type(value)}")
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
