"""`tf.estimator.EstimatorSpec`, the result of a `model_fn`, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from runner.internals.tensorflow import get_export_outputs
from runner.session.session_manager import with_arguments_of


class ModeKeys:
    """The purposes of a graph, as in `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _Fields(NamedTuple):
    mode: str | None
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


class EstimatorSpec(_Fields):
    """`tf.estimator.EstimatorSpec`: the operations and objects that make up a model in one mode.

    Attributes:
      mode: one of `ModeKeys`; None from a `model_fn` that does not take the mode.
      predictions: a tensor or a dict of tensors; required in PREDICT.
      loss: a scalar, or a tensor of one element, which is reshaped; required in TRAIN and EVAL.
      train_op: an operation or a tensor; required in TRAIN.
      eval_metric_ops: name -> (value, update_op), as `tf.compat.v1.metrics` returns them, or a
        metric of `tf_keras` that was updated.
      export_outputs: signature -> `ExportOutput`; by default all predictions, in PREDICT.
      training_chief_hooks: hooks of the chief's training.
      training_hooks: hooks of every worker's training.
      scaffold: by default `tf.compat.v1.train.Scaffold()`.
      evaluation_hooks: hooks of an evaluation.
      prediction_hooks: hooks of a prediction.

    Raises:
      ValueError: when a field that the mode requires is missing, or is of another graph.
      TypeError: when a field is of another type.
    """

    __slots__ = ()

    @with_arguments_of(_Fields.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> EstimatorSpec:
        """Checks the fields."""
        fields = _Fields(*args, **kwargs)
        mode = fields.mode
        predictions = _predictions(fields.predictions, mode)
        outputs = fields.export_outputs
        if mode == ModeKeys.PREDICT:
            outputs = get_export_outputs(outputs, predictions)
        return super().__new__(
            cls,
            mode,
            predictions,
            _loss(fields.loss, mode),
            _train_op(fields.train_op, mode),
            _eval_metric_ops(fields.eval_metric_ops),
            outputs,
            checked_hooks(fields.training_chief_hooks),
            checked_hooks(fields.training_hooks),
            _scaffold(fields.scaffold),
            checked_hooks(fields.evaluation_hooks),
            checked_hooks(fields.prediction_hooks),
        )

    def _replace(self, **kwds: Any) -> EstimatorSpec:
        """Returns a checked spec with some fields changed; the mode is not one of them."""
        if kwds.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **kwds})


def checked_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns the hooks as a tuple.

    Raises:
      TypeError: when one is not a `tf.compat.v1.train.SessionRunHook`.
    """
    return _instances(hooks, tf.compat.v1.train.SessionRunHook, "hooks must be SessionRunHook")


def checked_listeners(listeners: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns the listeners as a tuple.

    Raises:
      TypeError: when one is not a `tf.compat.v1.train.CheckpointSaverListener`.
    """
    kind = tf.compat.v1.train.CheckpointSaverListener
    return _instances(listeners, kind, "saving_listeners must be `CheckpointSaverListener`")


def _instances(values: Iterable[Any] | None, kind: type, rule: str) -> tuple[Any, ...]:
    instances = tuple(values or ())
    for value in instances:
        if not isinstance(value, kind):
            raise TypeError(f"All {rule} instances, given: {value}")
    return instances


def check_positive(**steps: int | None) -> None:
    """Checks numbers of steps; None means no limit.

    Raises:
      ValueError: when one is not positive.
    """
    for name, value in steps.items():
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def _require_default_graph(field: str, element: Any, name: str | None = None) -> None:
    if element.graph is not tf.compat.v1.get_default_graph():
        raise ValueError(
            f'{field} with "{name or element.name}" must be from the default graph, in which the '
            "model_fn was called."
        )


def _tensor(value: Any, name: str) -> tf.Tensor:
    if not tf.is_tensor(value) or not hasattr(value, "graph"):
        raise TypeError(f"{name} must be Tensor, given: {value}")
    return value


def _train_op(train_op: Any, mode: str | None) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, tf.Operation) and not tf.is_tensor(train_op):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
    _require_default_graph("train_op", train_op)
    return train_op


def _loss(loss: Any, mode: str | None) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        return None
    loss = _tensor(loss, "loss")
    _require_default_graph("loss", loss)
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _predictions(predictions: Any, mode: str | None) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        return {}
    if not isinstance(predictions, dict):
        _require_default_graph("prediction values", _tensor(predictions, "predictions"))
        return predictions
    for name, value in predictions.items():
        _require_default_graph(
            "prediction values",
            _tensor(value, f"predictions[{name}]"),
            f"{name}: {getattr(value, 'name', value)}",
        )
    return dict(predictions)


def _eval_metric_ops(metrics: Any) -> dict[str, tuple[Any, Any]]:
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics}")
    checked = {name: _metric(name, value) for name, value in metrics.items()}
    for name, pair in checked.items():
        for element in tf.nest.flatten(pair):
            _require_default_graph(
                "eval_metric_ops", element, f"{name}: {getattr(element, 'name', element)}"
            )
    return checked


def _metric(key: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:
        return value
    # A Metric of tf_keras, which is imported only by programs that use it.
    if not all(hasattr(value, name) for name in ("updates", "result", "variables")):
        raise TypeError(
            "Values of eval_metric_ops must be (metric_value, update_op) tuples, given: "
            f"{value} for key: {key}"
        )
    if not value.updates:
        raise ValueError(f'Please call update_state(...) on the "{value.name}" metric')
    keys = tf.compat.v1.GraphKeys
    for collection in (keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES):
        present = {id(variable) for variable in tf.compat.v1.get_collection(collection)}
        for variable in value.variables:
            if id(variable) not in present:
                tf.compat.v1.add_to_collection(collection, variable)
    return value.result(), value.updates[0]


def _scaffold(scaffold: Any) -> tf.compat.v1.train.Scaffold:
    if scaffold is None:
        return tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold}")
    return scaffold
