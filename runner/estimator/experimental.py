"""`tf.estimator.experimental`: hooks that end a training early, or evaluate while it runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from runner.estimator.estimator import Estimator
from runner.graph.evaluation import temporary_checkpoint

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """Returns global step -> metrics, in order of steps, of the event files of evaluations."""
    metrics: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for file in sorted(Path(eval_dir).glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    metrics[event.step][value.tag] = value.simple_value
    return dict(sorted(metrics.items()))


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> _Hook:
    """Returns a hook that ends training, in all tasks of a cluster, when a function returns True.

    Args:
      estimator: the Estimator that trains.
      should_stop_fn: called by the chief.
      run_every_secs: seconds between the calls, by default 60; None if `run_every_steps` is given.
      run_every_steps: steps between the calls.

    Raises:
      ValueError: when both intervals are given.
    """
    if None not in (run_every_secs, run_every_steps):
        raise ValueError("Only one of `run_every_secs` and `run_every_steps` must be set.")
    if not estimator.config.is_chief:
        return _StopWithChief()
    timer = tf.compat.v1.train.SecondOrStepTimer(run_every_secs, run_every_steps)
    return _StopOnPredicate(should_stop_fn, timer)


class _StopWithChief(_Hook):
    """Ends the training of a worker after the chief has set a variable, named as in TensorFlow."""

    def begin(self) -> None:
        with tf.compat.v1.variable_scope("signal_early_stopping", reuse=tf.compat.v1.AUTO_REUSE):
            self.stop = tf.compat.v1.get_variable(
                "STOP", initializer=tf.constant(False), trainable=False
            )

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.stop)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            run_context.request_stop()


class _StopOnPredicate(_StopWithChief):
    """Ends the training of all tasks when a function says so."""

    def __init__(self, should_stop_fn: Callable[[], bool], timer: Any) -> None:
        self._should_stop, self._timer = should_stop_fn, timer

    def begin(self) -> None:
        super().begin()
        self._set = self.stop.assign(True)

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(tf.compat.v1.train.get_global_step())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.results
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop():
                run_context.session.run(self._set.op)
                run_context.request_stop()


def _stop_if(
    crossed: Callable[[dict[int, float]], bool],
    estimator: Estimator,
    metric_name: str,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> _Hook:
    """Returns a hook that ends training when `crossed` accepts a metric's values by step.

    It reads the event files of evaluations in `eval_dir`, by default `estimator.eval_dir()`, from
    step `min_steps` on; the intervals are as for `make_early_stopping_hook`.
    """

    def should_stop() -> bool:
        metrics = read_eval_metrics(eval_dir or estimator.eval_dir())
        return crossed({step: metrics[step][metric_name] for step in metrics if step >= min_steps})

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Estimator, metric_name: str, threshold: float, *args: Any, **kwargs: Any
) -> _Hook:
    """Returns a hook that ends training when a metric is above a threshold.

    It reads the event files of evaluations. The other arguments are TensorFlow's: `eval_dir`,
    `min_steps`, `run_every_secs` and `run_every_steps`.
    """

    def is_above(values: dict[int, float]) -> bool:
        return any(value > threshold for value in values.values())

    return _stop_if(is_above, estimator, metric_name, *args, **kwargs)


def stop_if_lower_hook(
    estimator: Estimator, metric_name: str, threshold: float, *args: Any, **kwargs: Any
) -> _Hook:
    """Returns a hook that ends training when a metric is below a threshold.

    It takes the arguments of `stop_if_higher_hook`.
    """

    def is_below(values: dict[int, float]) -> bool:
        return any(value < threshold for value in values.values())

    return _stop_if(is_below, estimator, metric_name, *args, **kwargs)


def _stalled(values: dict[int, float], steps: int, sign: int) -> bool:
    """Whether the values, times `sign`, did not grow for a number of steps."""
    best_step, best = 0, -math.inf
    for step, value in values.items():
        if sign * value > best:
            best_step, best = step, sign * value
        elif step - best_step >= steps:
            return True
    return False


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_improvement: int,
    *args: Any,
    **kwargs: Any,
) -> _Hook:
    """Returns a hook that ends training when a metric has not grown for so many steps.

    It takes the other arguments of `stop_if_higher_hook`.
    """
    steps = max_steps_without_improvement
    return _stop_if(
        lambda values: _stalled(values, steps, 1), estimator, metric_name, *args, **kwargs
    )


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_improvement: int,
    *args: Any,
    **kwargs: Any,
) -> _Hook:
    """Returns a hook that ends training when a metric has not shrunk for so many steps.

    It takes the other arguments of `stop_if_higher_hook`.
    """
    steps = max_steps_without_improvement
    return _stop_if(
        lambda values: _stalled(values, steps, -1), estimator, metric_name, *args, **kwargs
    )


class InMemoryEvaluatorHook(_Hook):
    """Evaluates before training, every so many steps, and at its end, in the training process.

    Args:
      estimator: the Estimator that trains.
      input_fn: as `Estimator.evaluate` takes it.
      steps: as `Estimator.evaluate` takes it.
      hooks: as `Estimator.evaluate` takes it.
      name: as `Estimator.evaluate` takes it.
      every_n_iter: steps between evaluations, by default 100.

    Raises:
      ValueError: when `every_n_iter` is not positive, or the Estimator trains in a cluster.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Any = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        if estimator.config.num_ps_replicas > 0 or estimator.config.num_worker_replicas > 1:
            raise ValueError("InMemoryEvaluator supports only single machine (aka Local) setting.")
        self._estimator, self._every = estimator, every_n_iter
        self._arguments = {"steps": steps, "hooks": hooks, "name": name}
        self._input_fn = input_fn

    def begin(self) -> None:
        """Adds what saves the model for an evaluation."""
        self._saver, self._steps = tf.compat.v1.train.Saver(), 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluates the model before training."""
        self._evaluate(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evaluates when it is due."""
        self._steps += 1
        if self._steps % self._every == 0:
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        """Evaluates the trained model."""
        self._evaluate(session)

    def _evaluate(self, session: Any) -> None:
        with temporary_checkpoint(session, self._saver) as path:
            self._estimator.evaluate(self._input_fn, checkpoint_path=path, **self._arguments)
