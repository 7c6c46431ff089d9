"""The objective of a run: the loss that it minimises, and its metrics.

The configuration names them, or the model brings its own: by `compile`, by overriding
`compute_loss` or `compute_metrics`, or by metrics that it tracks.
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
from runner.errors import ConfigError, ranked
from runner.graph.epochs import EpochMeans, EpochMetrics, epoch_metrics
from runner.graph.experiment import overrides
from runner.graph.keras_measures import Losses, OfModel, Streaming, outputs_of
from runner.graph.measures import Batch, Measure, PerExample, Totals, Values
from runner.system.user_code import calling

# The runner replaces these methods of Keras's `fit` and `evaluate`.
_NOT_CALLED = ("make_train_function", "make_test_function")
# Names that `keras.Model.compile` resolves by the shapes of labels and outputs.
_BY_SHAPE = {"loss": ("crossentropy", "ce"), "metric": ("accuracy", "acc")}


class Objective:
    """The loss and the metrics of a run.

    Args:
      config: the run's configuration.
      model: the model, as its `_target_` returned it.

    Attributes:
      notes: lines on what the configuration replaces of a compiled model.

    Raises:
      ConfigError: when a loss or a metric cannot be built, there is no loss, or the model overrides
        methods that the runner does not call.
    """

    def __init__(self, config: RunConfig, model: Any) -> None:
        _require_called(config, model)
        self._config, self._model = config, model
        self._epoch_means = EpochMeans()
        self._trainer = model if isinstance(model, keras.Model) else None
        self._replaced = _made_by_compile(self._trainer)
        model_metrics = self._trainer.metrics if self._trainer else []
        has_metrics = any(metric.name != "loss" for metric in model_metrics)
        self.notes = tuple(self._notes(has_metrics))
        metrics = list(self._metrics())
        takes_metrics = has_metrics and not metrics
        loss = self._loss(takes_metrics)
        self._measures = [loss, *metrics]
        if self._trainer and takes_metrics and not isinstance(loss, OfModel):
            self._measures.append(OfModel(self._trainer, loss=False, metrics=True))

    @property
    def needs_labels(self) -> bool:
        """Whether a loss or a metric compares labels; `add_loss` and metrics of layers do not."""
        config, model = self._config, self._trainer
        compiled = model is not None and (
            model.loss is not None or overrides(model, "compute_loss")
        )
        return compiled or bool(config.loss or config.metrics or config.weighted_metrics)

    def begin_batch(self) -> None:
        """Resets the metrics that the model's call updates, before a batch of training."""
        for measure in self._measures if not self._config.callbacks else ():
            measure.begin_batch()

    def means(self, batch: Batch) -> Values:
        """Returns the loss and the metrics of a batch of training, by name: float32 scalars."""
        batch = self._by_class(batch)
        values = _merged(
            self._call(measure, measure.batch_result, batch) for measure in self._measures
        )
        if self._config.callbacks:
            self._epoch_means.add(self.add(batch))
        # A gradient of 0 for a metric would still be NaN wherever the metric's own derivative is.
        return {
            name: value if name == "loss" else tf.stop_gradient(value)
            for name, value in values.items()
        }

    def add(self, batch: Batch) -> Totals:
        """Adds a batch to a pass; returns metric name -> sum and count, for means."""
        return _merged(self._call(measure, measure.add, batch) for measure in self._measures)

    def pass_result(self) -> Values:
        """Returns the other metrics of the pass, by name: float32 scalars."""
        return _merged(self._call(measure, measure.pass_result) for measure in self._measures)

    def epoch(self, train_op: tf.Operation, graph: tf.Graph) -> EpochMetrics:
        """Returns the metrics of the batches since the beginning of an epoch, after the train op.

        As in `keras.Model.fit`, evaluations use the state of the same metrics.
        """

        def epoch_values() -> Values:
            return {**self._epoch_means.results(), **self.pass_result()}

        self.keep_out_of_checkpoints(graph)
        with tf.control_dependencies([train_op]):
            values = tf.function(epoch_values, autograph=False)()
        return epoch_metrics(values, self.begin(), self._state())

    def begin(self) -> tf.Operation:
        """Returns the operation that begins a pass: initial values, then each metric's reset."""

        def reset() -> tf.Tensor:
            for measure in self._measures:
                measure.reset()
            return tf.constant(True)

        with tf.control_dependencies([variable.initializer for variable in self._state()]):
            return tf.function(reset, autograph=False)().op

    def keep_out_of_checkpoints(self, graph: tf.Graph) -> None:
        """Removes the metrics' state from the graph's variables: a pass initialises it.

        So checkpoints do not hold it, and other tasks of a cluster do not share it.
        """
        apart = {variable.ref() for variable in (*self._state(), *self._replaced)}
        variables = graph.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        variables[:] = [variable for variable in variables if variable.ref() not in apart]
        for variable in self._state():
            graph.add_to_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES, variable)

    def _state(self) -> list[tf.Variable]:
        holders: list[Any] = [*self._measures, self._epoch_means]
        return [variable.value for holder in holders for variable in holder.variables]

    def _notes(self, has_metrics: bool) -> Iterator[str]:
        config, model = self._config, self._trainer
        if model is None:
            return
        yield from _notes_on_logits(config.loss, model)
        if not model.compiled:
            return
        replaced = {
            "optimizer": model.optimizer is not None and bool(config.optimizer),
            "loss": model.loss is not None and config.loss is not None,
            "metrics": has_metrics and bool(config.metrics or config.weighted_metrics),
        }
        for name, is_replaced in replaced.items():
            if is_replaced:
                yield f"{name}: from the configuration, instead of the compiled model's own"
        yield from ignored_settings(model)

    def _loss(self, takes_metrics: bool) -> Measure:
        config, model = self._config, self._trainer
        own_loss = model is not None and overrides(model, "compute_loss")
        loss = resolved("loss", "loss", config.loss)
        if isinstance(loss, list):
            loss = self._by_output(loss)
        _require_weighted(config.loss_weights, loss if isinstance(loss, Mapping) else ())
        if config.loss is None:
            if model is None or not (model.compiled or own_loss):
                raise ConfigError.of(
                    "loss has no value",
                    "the model has none of its own, because it is not compiled",
                    "name one, such as loss=sparse_categorical_crossentropy",
                )
            return OfModel(model, loss=True, metrics=takes_metrics)
        if own_loss and model is not None:
            optimizer = model.optimizer if model.compiled else None
            model.compile(optimizer=optimizer, loss=loss, loss_weights=config.loss_weights or None)
            return OfModel(model, loss=True, metrics=takes_metrics)
        if isinstance(loss, Mapping):
            return Losses(loss, config.loss_weights, self._model)
        if isinstance(loss, str | keras.losses.Loss):
            return Losses({None: loss}, {}, self._model)
        return PerExample("loss", "loss", loss, self._model, weighted=True)

    def _by_output(self, losses: list[Any]) -> dict[str, Any]:
        names = outputs_of(self._model)
        if len(names) != len(losses):
            raise ConfigError.of(
                f"loss lists {len(losses)} losses, and the model names {len(names)} outputs",
                "each output has one, in order",
                "write loss as a mapping from the names of outputs",
                tuple(names),
            )
        return dict(zip(names, losses, strict=True))

    def _metrics(self) -> Iterator[Measure]:
        for group, weighted in (("metrics", False), ("weighted_metrics", True)):
            for name, node in getattr(self._config, group).items():
                key = f"{group}.{name}"
                if not isinstance(node, Mapping) or "_target_" in node:
                    yield _metric(name, key, node, weighted=weighted)
                    continue
                for metric_name, metric_node in node.items():
                    metric = _metric(
                        f"{name}_{metric_name}",
                        f"{key}.{metric_name}",
                        metric_node,
                        weighted=weighted,
                    )
                    metric.output = name
                    yield metric

    def _call(self, measure: Measure, function: Callable[..., Any], *batches: Batch) -> Any:
        """Calls a method of a measure with batches, or with the output of them that it measures."""
        with calling(measure.key):
            if measure.output is not None:
                order = outputs_of(self._model)
                batches = tuple(batch.only(measure.key, measure.output, order) for batch in batches)
            return function(*batches)

    def _by_class(self, batch: Batch) -> Batch:
        """Weights the examples of a batch by their classes."""
        weights = self._config.class_weight
        if not weights:
            return batch
        if batch.weights is not None or tf.nest.is_nested(batch.labels):
            raise ConfigError.of(
                "class_weight is set, and the training data give "
                + ("labels of several outputs" if batch.weights is None else "sample weights"),
                "as in Keras, examples are weighted by the class of their only label, or by "
                "the data",
                "delete class_weight, and let the data give (features, labels, weights)",
            )
        return replace(batch, weights=class_weights(batch.labels, weights))


def _notes_on_logits(loss: Any, model: keras.Model) -> Iterator[str]:
    """Yields a line for each loss by name that takes probabilities and is given logits."""
    if isinstance(model, keras.Sequential):
        layers = {"": model.layers[-1]} if model.layers else {}
    else:
        layers = {name: model.get_layer(name) for name in outputs_of(model)}
    for output, layer in layers.items():
        name = loss.get(output) if isinstance(loss, Mapping) else loss
        takes_probabilities = isinstance(name, str) and "crossentropy" in name.lower()
        if takes_probabilities and getattr(layer, "activation", None) is keras.activations.linear:
            yield (
                f"loss: {name} takes probabilities, and {layer.name}, which has no activation, "
                "gives logits: use a class of keras.losses with from_logits=true, or an activation"
            )


def ignored_settings(model: keras.Model) -> Iterator[str]:
    """Yields lines on settings of a compiled model that have no effect in a run."""
    settings = {
        "run_eagerly": model.run_eagerly,
        "steps_per_execution": model.steps_per_execution != 1,
    }
    for name in (name for name, is_set in settings.items() if is_set):
        yield f"{name}: no effect from compile, because a run makes single steps of a graph"


def class_weights(labels: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """Returns the weight of each example, float32 [batch].

    Args:
      labels: classes [batch] or [batch, 1], or a number for each class [batch, ..., classes].
      weights: class -> weight; other classes weigh 1.
    """
    if labels.shape.rank > 1:
        is_column = labels.shape[-1] == 1
        labels = tf.squeeze(labels, -1) if is_column else tf.argmax(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int32)
    by_class = [weights.get(index, 1.0) for index in range(max(weights) + 1)]
    # The last entry is for all classes beyond.
    return tf.gather(tf.constant([*by_class, 1.0]), tf.minimum(labels, len(by_class)))


def _metric(name: str, key: str, node: Any, *, weighted: bool) -> Measure:
    metric = resolved("metric", key, node)
    if isinstance(metric, str | keras.metrics.Metric):
        return Streaming(name, key, metric, weighted=weighted)
    return PerExample(name, key, metric, weighted=weighted)


def resolved(kind: str, key: str, node: Any) -> Any:
    """Returns a loss or a metric, or for a loss a nested structure of them.

    Raises:
      ConfigError: when it cannot be built, or Keras knows no such name.
    """
    if isinstance(node, str):
        return _named(kind, key, node)
    if isinstance(node, Mapping) and "_target_" in node:
        built = build_target(key, node)
        if isinstance(built, functools.partial) and inspect.isclass(built.func):
            raise ConfigError.of(
                f"{key}: {node['_target_']} is a class, and `_partial_` is true",
                "it would be constructed again for every batch",
                "delete `_partial_`",
            )
        return built
    if isinstance(node, Mapping):
        return {name: resolved(kind, f"{key}.{name}", value) for name, value in node.items()}
    if isinstance(node, list):
        return [resolved(kind, f"{key}.{index}", value) for index, value in enumerate(node)]
    return node


def _named(kind: str, key: str, name: str) -> Any:
    """Resolves a name as `keras.Model.compile` does; a name that needs shapes stays."""
    if name.lower() in _BY_SHAPE[kind]:
        return name
    module: Any = keras.losses if kind == "loss" else keras.metrics
    try:
        measure = module.get(name)
    except (ValueError, TypeError) as error:
        names = [name for name in dir(module) if not name.startswith("_")]
        raise ConfigError.of(
            f"{key} is {name!r}",
            f"Keras knows no {kind} of that name that needs no arguments",
            "name a function or class of your own by `_target_`",
            ranked(name, [*names, *_BY_SHAPE[kind]])[:5],
        ) from error
    # Keras wraps a function only where it is given by name.
    return name if kind == "loss" and not isinstance(measure, keras.losses.Loss) else measure


def _require_weighted(weights: Mapping[str, float], losses: Collection[str]) -> None:
    """Raises a ConfigError for `loss_weights` of outputs without a loss."""
    wrong = [name for name in weights if name not in losses]
    if wrong:
        raise ConfigError.of(
            f"loss_weights.{wrong[0]} weighs no loss",
            "the configuration gives no loss to an output of that name",
            "" if losses else "write loss as a mapping from outputs to losses",
            ranked(wrong[0], losses),
        )


def _require_called(config: RunConfig, model: Any) -> None:
    """Raises a ConfigError for a model that overrides methods that the runner does not call."""
    if not isinstance(model, keras.Model):
        return
    overridden = [method for method in _NOT_CALLED if overrides(model, method)]
    if overridden:
        raise ConfigError.of(
            f"model: {type(model).__name__} has a {' and a '.join(overridden)} of its own",
            "a run makes the function that takes its steps itself",
            "move what differs to train_step, test_step or compute_loss, which are called",
        )


def _made_by_compile(model: keras.Model | None) -> list[tf.Variable]:
    """Returns the variables that `compile` made: of the optimizer and the metrics.

    `keras.saving.load_model` makes a second optimizer on the way, whose variables are among them.
    """
    if model is None or not model.compiled:
        return []
    others = {variable.value.ref() for variable in model.variables}
    others.add(tf.compat.v1.train.get_or_create_global_step().ref())
    variables = tf.compat.v1.global_variables()
    return [variable for variable in variables if variable.ref() not in others]


def _merged(groups: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merges groups of entries.

    Raises:
      ConfigError: when two entries have one name.
    """
    merged: dict[str, Any] = {}
    for group in groups:
        for name, value in group.items():
            if name in merged:
                raise ConfigError.of(
                    f"two metrics are named {name}",
                    "metrics of an output are named OUTPUT_METRIC, and `loss` is the loss",
                    "give them distinct names",
                )
            merged[name] = value
    return merged
