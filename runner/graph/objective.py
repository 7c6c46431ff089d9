"""The objective of a run: the loss that it minimises, and its metrics.

They are those of the configuration, or of a model that says its own: by `compile`, by overriding
`compute_loss` or `compute_metrics`, or by metrics that it keeps.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, ranked
from runner.graph.keras_measures import Losses, OfModel, Streaming, outputs_of
from runner.graph.measures import Batch, Measure, PerExample, Totals, Values
from runner.system.user_code import calling

# What the runner does in the place of Keras's `fit` and `evaluate`.
_NOT_CALLED = ("train_step", "test_step", "make_train_function", "make_test_function")
# Names that `keras.Model.compile` resolves by the shapes of labels and outputs.
_BY_SHAPE = {"loss": ("crossentropy", "ce"), "metric": ("accuracy", "acc")}


class Objective:
    """The loss and the metrics of a run.

    Args:
      config: the run's configuration.
      model: the model, as its `_target_` returned it.

    Attributes:
      notes: what the configuration replaces of the model's own, a line each.

    Raises:
      ConfigError: when a loss or a metric cannot be built, there is no loss, or the model has
        methods of its own that the runner does not call.
    """

    def __init__(self, config: RunConfig, model: Any) -> None:
        _require_called(config, model)
        self._config, self._model = config, model
        self._trainer = model if isinstance(model, keras.Model) else None
        self._replaced = _made_by_compile(self._trainer)
        own = [each.name for each in self._trainer.metrics] if self._trainer else []
        has_metrics = any(name != "loss" for name in own)
        self.notes = tuple(self._notes(has_metrics))
        metrics = list(self._metrics())
        own_metrics = has_metrics and not metrics
        loss = self._loss(own_metrics)
        self._measures = [loss, *metrics]
        if self._trainer and own_metrics and not isinstance(loss, OfModel):
            self._measures.append(OfModel(self._trainer, loss=False, metrics=True))

    def begin_batch(self) -> None:
        """Resets what the model's call updates, before the call of a batch of training."""
        for each in self._measures:
            each.begin_batch()

    def means(self, batch: Batch) -> Values:
        """Returns the loss and the metrics of a batch of training, by name: float32 scalars."""
        batch = self._by_class(batch)
        values = _merged(self._called(each, each.of_batch, batch) for each in self._measures)
        # A gradient of 0 for a metric would still be NaN wherever the metric's own derivative is.
        return {
            name: value if name == "loss" else tf.stop_gradient(value)
            for name, value in values.items()
        }

    def add(self, batch: Batch) -> Totals:
        """Adds a batch to a pass; returns metric name -> sum and count, for those that have it."""
        return _merged(self._called(each, each.add, batch) for each in self._measures)

    def of_pass(self) -> Values:
        """Returns the other metrics of the pass, by name: float32 scalars."""
        return _merged(self._called(each, each.of_pass) for each in self._measures)

    def begin(self) -> tf.Operation:
        """Returns the operation that begins a pass: initial values, then each metric's reset."""

        def reset() -> tf.Tensor:
            for each in self._measures:
                each.reset()
            return tf.constant(True)

        with tf.control_dependencies([each.initializer for each in self._state()]):
            return tf.function(reset, autograph=False)().op

    def keep_apart(self, graph: tf.Graph) -> None:
        """Makes the metrics' state no variables of the graph: a pass initialises them itself.

        So no checkpoint has them, and other tasks of a cluster leave them alone.
        """
        apart = {each.ref() for each in (*self._state(), *self._replaced)}
        every = graph.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        every[:] = [each for each in every if each.ref() not in apart]
        for each in self._state():
            graph.add_to_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES, each)

    def _state(self) -> list[tf.Variable]:
        return [variable.value for each in self._measures for variable in each.variables]

    def _notes(self, has_metrics: bool) -> Iterator[str]:
        config, model = self._config, self._trainer
        if model is None or not model.compiled:
            return
        replaced = {
            "optimizer": model.optimizer is not None and bool(config.optimizer),
            "loss": model.loss is not None and config.loss is not None,
            "metrics": has_metrics and bool(config.metrics or config.weighted_metrics),
        }
        for name, is_replaced in replaced.items():
            if is_replaced:
                yield f"{name}: that of the configuration, in place of the compiled model's own"
        settings = {
            "run_eagerly": model.run_eagerly,
            "steps_per_execution": model.steps_per_execution != 1,
        }
        for name in (name for name, is_set in settings.items() if is_set):
            yield f"{name}: that of compile has no effect, a run makes single steps of a graph"

    def _loss(self, own_metrics: bool) -> Measure:
        config, model = self._config, self._trainer
        overrides = model is not None and _overrides(model, "compute_loss")
        loss = _resolved("loss", "loss", config.loss)
        if isinstance(loss, list):
            loss = self._by_output(loss)
        _require_weighted(config.loss_weights, loss if isinstance(loss, Mapping) else ())
        if config.loss is None:
            if model is None or not (model.compiled or overrides):
                raise ConfigError(
                    Problem(
                        "loss has no value",
                        "the model has none of its own, because it is not compiled",
                        "name one, such as loss=sparse_categorical_crossentropy",
                    )
                )
            return OfModel(model, loss=True, metrics=own_metrics)
        if overrides and model is not None:
            optimizer = model.optimizer if model.compiled else None
            model.compile(optimizer=optimizer, loss=loss, loss_weights=config.loss_weights or None)
            return OfModel(model, loss=True, metrics=own_metrics)
        if isinstance(loss, Mapping):
            return Losses(loss, config.loss_weights, self._model)
        if isinstance(loss, str | keras.losses.Loss):
            return Losses({None: loss}, {}, self._model)
        return PerExample("loss", "loss", loss, self._model, weighted=True)

    def _by_output(self, losses: list[Any]) -> dict[str, Any]:
        names = outputs_of(self._model)
        if len(names) != len(losses):
            raise ConfigError(
                Problem(
                    f"loss lists {len(losses)} losses, and the model names {len(names)} outputs",
                    "each output has one, in order",
                    "write loss as a mapping from the names of outputs",
                    tuple(names),
                )
            )
        return dict(zip(names, losses, strict=True))

    def _metrics(self) -> Iterator[Measure]:
        for group, weighted in (("metrics", False), ("weighted_metrics", True)):
            for name, node in getattr(self._config, group).items():
                key = f"{group}.{name}"
                if not isinstance(node, Mapping) or "_target_" in node:
                    yield _metric(name, key, node, weighted=weighted)
                    continue
                for inner, each in node.items():
                    metric = _metric(f"{name}_{inner}", f"{key}.{inner}", each, weighted=weighted)
                    metric.output = name
                    yield metric

    def _called(self, measure: Measure, function: Callable[..., Any], *batches: Batch) -> Any:
        """Calls a method of a measure with batches, or with the parts of them that it measures."""
        with calling(measure.key):
            if measure.output is not None:
                order = outputs_of(self._model)
                batches = tuple(each.only(measure.key, measure.output, order) for each in batches)
            return function(*batches)

    def _by_class(self, batch: Batch) -> Batch:
        """Returns a batch with the weights of its examples' classes."""
        weights = self._config.class_weight
        if not weights:
            return batch
        if batch.weights is not None or tf.nest.is_nested(batch.labels):
            raise ConfigError(
                Problem(
                    "class_weight is set, and the training data give "
                    + ("labels of several outputs" if batch.weights is None else "sample weights"),
                    "as in Keras, examples are weighted by the class of their only label, or by "
                    "the data",
                    "delete class_weight, and let the data give (features, labels, weights)",
                )
            )
        return replace(batch, weights=class_weights(batch.labels, weights))


def class_weights(labels: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """Returns the weight of each example, float32 [batch].

    Args:
      labels: classes [batch] or [batch, 1], or a number for each class [batch, ..., classes].
      weights: class -> weight; other classes weigh 1.
    """
    if labels.shape.rank > 1:
        one = labels.shape[-1] == 1
        labels = tf.squeeze(labels, -1) if one else tf.argmax(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int32)
    known = [weights.get(index, 1.0) for index in range(max(weights) + 1)]
    # The last entry is for all classes beyond.
    return tf.gather(tf.constant([*known, 1.0]), tf.minimum(labels, len(known)))


def _metric(name: str, key: str, node: Any, *, weighted: bool) -> Measure:
    metric = _resolved("metric", key, node)
    if isinstance(metric, str | keras.metrics.Metric):
        return Streaming(name, key, metric, weighted=weighted)
    return PerExample(name, key, metric, weighted=weighted)


def _resolved(kind: str, key: str, node: Any) -> Any:
    """Returns a loss or a metric, or for a loss a nested structure of them.

    Raises:
      ConfigError: when it cannot be built, or Keras knows no such name.
    """
    if isinstance(node, str):
        return _named(kind, key, node)
    if isinstance(node, Mapping) and "_target_" in node:
        built = build_target(key, node)
        if isinstance(built, functools.partial) and inspect.isclass(built.func):
            raise ConfigError(
                Problem(
                    f"{key}: {node['_target_']} is a class, and `_partial_` is true",
                    "it would be constructed anew for each batch",
                    "delete `_partial_`",
                )
            )
        other = keras.metrics.Metric if kind == "loss" else keras.losses.Loss
        if isinstance(built, other):
            raise ConfigError(
                Problem(
                    f"{key}: {node['_target_']} is a {other.__module__.split('.')[0]} "
                    f"{other.__name__.lower()}",
                    f"a {kind} is asked for",
                    f"name one of keras.{'losses' if kind == 'loss' else 'metrics'}",
                )
            )
        return built
    if isinstance(node, Mapping):
        return {name: _resolved(kind, f"{key}.{name}", each) for name, each in node.items()}
    if isinstance(node, list):
        return [_resolved(kind, f"{key}.{index}", each) for index, each in enumerate(node)]
    return node


def _named(kind: str, key: str, name: str) -> Any:
    """Returns what `keras.Model.compile` makes of a name, or the name where that needs shapes."""
    if name.lower() in _BY_SHAPE[kind]:
        return name
    module: Any = keras.losses if kind == "loss" else keras.metrics
    try:
        found = module.get(name)
    except (ValueError, TypeError) as error:
        known = [each for each in dir(module) if not each.startswith("_")]
        raise ConfigError(
            Problem(
                f"{key} is {name!r}",
                f"Keras knows no {kind} of that name that needs no arguments",
                "name a function or class of your own by `_target_`",
                ranked(name, [*known, *_BY_SHAPE[kind]])[:5],
            )
        ) from error
    # A function is wrapped by Keras only where it is given by name.
    return name if kind == "loss" and not isinstance(found, keras.losses.Loss) else found


def _overrides(model: keras.Model, method: str) -> bool:
    return getattr(type(model), method) is not getattr(keras.Model, method)


def _require_weighted(weights: Mapping[str, float], losses: Collection[str]) -> None:
    """Raises a ConfigError for `loss_weights` of outputs that have no loss of their own."""
    wrong = [name for name in weights if name not in losses]
    if wrong:
        raise ConfigError(
            Problem(
                f"loss_weights.{wrong[0]} weighs no loss",
                "the configuration gives no loss to an output of that name",
                "" if losses else "write loss as a mapping from outputs to losses",
                ranked(wrong[0], losses),
            )
        )


def _require_called(config: RunConfig, model: Any) -> None:
    """Raises a ConfigError for a model with methods of its own that the runner does not call."""
    if not isinstance(model, keras.Model):
        return
    own = [each for each in _NOT_CALLED if _overrides(model, each)]
    if own:
        raise ConfigError(
            Problem(
                f"model: {type(model).__name__} has a {' and a '.join(own)} of its own",
                "the runner makes the training step itself, so that it can freeze, clip, "
                "accumulate and resume",
                "move what differs to compute_loss and compute_metrics, which are called",
            )
        )


def _made_by_compile(model: keras.Model | None) -> list[tf.Variable]:
    """Returns the variables that are not the model's, when it is compiled and not called yet.

    They are its optimizer's and its metrics', and those of a second optimizer that
    `keras.saving.load_model` makes on the way.
    """
    if model is None or not model.compiled:
        return []
    kept = {each.value.ref() for each in model.variables}
    kept.add(tf.compat.v1.train.get_or_create_global_step().ref())
    return [each for each in tf.compat.v1.global_variables() if each.ref() not in kept]


def _merged(groups: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the entries of all groups.

    Raises:
      ConfigError: when two have one name.
    """
    merged: dict[str, Any] = {}
    for group in groups:
        for name, value in group.items():
            if name in merged:
                raise ConfigError(
                    Problem(
                        f"two metrics are named {name}",
                        "those of an output are named OUTPUT_METRIC, and `loss` is the loss",
                        "give them distinct names",
                    )
                )
            merged[name] = value
    return merged
