"""`tf.estimator.EstimatorSpec`, the result of a `model_fn`."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from runner.internals.tensorflow import get_export_outputs
from runner.session.session_manager import with_arguments_of


class ModeKeys:
    """The purposes of a graph, as in `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_REQUIRED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


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
      ValueError: when a field that the mode requires is missing, or the loss is no scalar.
      TypeError: when `export_outputs` are of another type.
    """

    __slots__ = ()

    @with_arguments_of(_Fields.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> EstimatorSpec:
        """Checks the fields, and replaces None by empty values."""
        fields = _Fields(*args, **kwargs)
        for name in _REQUIRED.get(fields.mode or "", ()):
            if getattr(fields, name) is None:
                raise ValueError(f"Missing {name}.")
        for tensor in tf.nest.flatten([fields.loss, fields.predictions]):
            if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor):
                raise TypeError(f"loss and predictions must be Tensor, given: {tensor}")
        loss, train_op, outputs = fields.loss, fields.train_op, fields.export_outputs
        predictions = {} if fields.predictions is None else fields.predictions
        if fields.mode == ModeKeys.PREDICT:
            outputs = get_export_outputs(outputs, predictions)
        if loss is not None and not loss.shape.is_compatible_with([]):
            loss = tf.reshape(loss, [])
        metrics = fields.eval_metric_ops or {}
        return super().__new__(
            cls,
            fields.mode,
            predictions,
            loss,
            train_op.op if isinstance(train_op, tf.Variable) else train_op,
            {name: _value_and_update(metric) for name, metric in metrics.items()},
            outputs,
            tuple(fields.training_chief_hooks or ()),
            tuple(fields.training_hooks or ()),
            fields.scaffold or tf.compat.v1.train.Scaffold(),
            tuple(fields.evaluation_hooks or ()),
            tuple(fields.prediction_hooks or ()),
        )


def check_positive(**steps: int | None) -> None:
    """Checks numbers of steps; None means no limit.

    Raises:
      ValueError: when one is not positive.
    """
    for name, value in steps.items():
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def _value_and_update(metric: Any) -> Any:
    """Returns (value, update_op) of a metric of `tf_keras`; other values as they are."""
    if isinstance(metric, tuple) or not hasattr(metric, "updates"):
        return metric
    if not metric.updates:
        raise ValueError(f'Please call update_state(...) on the "{metric.name}" metric')
    keys = tf.compat.v1.GraphKeys
    for collection in (keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES):
        present = {id(variable) for variable in tf.compat.v1.get_collection(collection)}
        for variable in metric.variables:
            if id(variable) not in present:
                tf.compat.v1.add_to_collection(collection, variable)
    return metric.result(), metric.updates[0]
