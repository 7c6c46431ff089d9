"""What a `model_fn` returns: `tf.estimator.EstimatorSpec`, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from runner.internals.tensorflow import get_export_outputs
from runner.session.session_manager import with_arguments_of

_ELSEWHERE = (
    '{0} with "{1}" must be from the default graph. Possible causes of this error include: \n\n'
    "1) {0} was created outside the context of the default graph.\n\n"
    "2) The object passed through to EstimatorSpec was not created in the most recent call to "
    '"model_fn".'
)


class ModeKeys:
    """What a graph is built for, as `tf.estimator.ModeKeys`."""

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
        given = _Fields(*args, **kwargs)
        mode = given.mode
        predictions = _predictions(given.predictions, mode)
        exported = given.export_outputs
        if mode == ModeKeys.PREDICT:
            exported = get_export_outputs(exported, predictions)
        return super().__new__(
            cls,
            mode,
            predictions,
            _loss(given.loss, mode),
            _train_op(given.train_op, mode),
            _eval_metric_ops(given.eval_metric_ops),
            exported,
            checked_hooks(given.training_chief_hooks),
            checked_hooks(given.training_hooks),
            _scaffold(given.scaffold),
            checked_hooks(given.evaluation_hooks),
            checked_hooks(given.prediction_hooks),
        )

    def _replace(self, **kwds: Any) -> EstimatorSpec:
        """Returns a checked spec with some fields changed; the mode is not one of them."""
        if kwds.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **kwds})


def checked_hooks(hooks: Iterable[Any] | None, kind: str = "SessionRunHook") -> tuple[Any, ...]:
    """Returns the hooks as a tuple; `kind` is how an error spells their type.

    Raises:
      TypeError: when one is not a `tf.compat.v1.train.SessionRunHook`.
    """
    return _instances(hooks, tf.compat.v1.train.SessionRunHook, f"hooks must be {kind}")


def checked_listeners(listeners: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns the listeners as a tuple.

    Raises:
      TypeError: when one is not a `tf.compat.v1.train.CheckpointSaverListener`.
    """
    kind = tf.compat.v1.train.CheckpointSaverListener
    return _instances(listeners, kind, "saving_listeners must be `CheckpointSaverListener`")


def _instances(given: Iterable[Any] | None, kind: type, rule: str) -> tuple[Any, ...]:
    found = tuple(given or ())
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"All {rule} instances, given: {each}")
    return found


def check_positive(**given: int | None) -> None:
    """Checks numbers of steps, where None means no limit.

    Raises:
      ValueError: when one is not positive.
    """
    for name, value in given.items():
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def _here(field: str, element: Any, name: str | None = None) -> None:
    if element.graph is not tf.compat.v1.get_default_graph():
        raise ValueError(_ELSEWHERE.format(field, name or element.name))


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
    _here("train_op", train_op)
    return train_op


def _loss(loss: Any, mode: str | None) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        return None
    loss = _tensor(loss, "loss")
    _here("loss", loss)
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _predictions(predictions: Any, mode: str | None) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        return {}
    if not isinstance(predictions, dict):
        _here("prediction values", _tensor(predictions, "predictions"))
        return predictions
    for name, value in predictions.items():
        _here(
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
            _here("eval_metric_ops", element, f"{name}: {getattr(element, 'name', element)}")
    return checked


def _metric(name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:
        return value
    # A Metric of tf_keras, which is imported only by programs that use it.
    if not all(hasattr(value, each) for each in ("updates", "result", "variables")):
        raise TypeError(
            "Values of eval_metric_ops must be (metric_value, update_op) tuples, given: "
            f"{value} for key: {name}"
        )
    if not value.updates:
        raise ValueError(f'Please call update_state(...) on the "{value.name}" metric')
    for key in (tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.METRIC_VARIABLES):
        present = {id(each) for each in tf.compat.v1.get_collection(key)}
        for variable in value.variables:
            if id(variable) not in present:
                tf.compat.v1.add_to_collection(key, variable)
    return value.result(), value.updates[0]


def _scaffold(scaffold: Any) -> tf.compat.v1.train.Scaffold:
    if scaffold is None:
        return tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold}")
    return scaffold
