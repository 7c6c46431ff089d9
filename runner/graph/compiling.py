"""Compiles the model of a run, by `keras.Model.compile`, with what the configuration names.

Where the configuration is silent, the model's own compilation stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config import conflicts
from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, UserCodeError, ranked
from runner.graph.building_optimizers import build_optimizer
from runner.graph.contracts import overrides
from runner.graph.plain_config import plain
from runner.graph.step_errors import described
from runner.graph.traces import operation_name
from runner.internals.keras import compiled_with
from runner.planning.optimizer_state import optimizers_of
from runner.system.user_code import calling

# The session takes steps in place of these methods of `fit` and `evaluate`.
_NOT_CALLED = ("make_train_function", "make_test_function")
METRICS = ("metrics", "weighted_metrics")
"""The keys that name metrics."""
# Arguments of `compile` that stand where the configuration names nothing in their place.
_KEPT = ("loss", "loss_weights", *METRICS, "jit_compile", "auto_scale_loss")
# Names that Keras resolves by the shapes of a batch, so that they stay names.
_BY_SHAPE = {"loss": ("crossentropy", "ce"), "metric": ("accuracy", "acc")}


def compile_model(config: RunConfig, model: keras.Model, step: tf.Variable) -> list[str]:
    """Compiles a model with the optimizer, loss and metrics of a configuration.

    Args:
      config: the configuration.
      model: the model, compiled or not.
      step: the global step, for `${graph:global_step}` in the optimizer's configuration.

    Returns:
      Lines on what the configuration replaces of the model's own compilation.

    Raises:
      ConfigError: when one of them cannot be built, or none is there.
    """
    compiled = compiled_with(model)
    named = {
        "loss": config.loss is not None,
        **{group: bool(getattr(config, group)) for group in METRICS},
        "optimizer": names_optimizer(config),
        "model.jit_compile": "jit_compile" in config.model,
    }
    _require_called(model)
    _require_loss(config, model)
    _require_outputs(config, model)
    _require_weighted(config.loss_weights, config.loss)
    lacks_optimizer = not optimizers_of(model)
    if not (lacks_optimizer or named["optimizer"]):
        _require_whole_optimizer(config, model)
    notes = list(_notes(config, model))  # First, because a new compilation drops settings.
    if not (lacks_optimizer or any(named.values())):
        return notes
    arguments: dict[str, Any] = {
        "optimizer": getattr(model, "optimizer", None),
        "jit_compile": False,
        **{name: value for name, value in compiled.items() if name in _KEPT},
    }
    if lacks_optimizer or named["optimizer"]:
        arguments["optimizer"] = build_optimizer(config, step)
    if named["loss"]:
        arguments |= {
            "loss": resolved("loss", "loss", config.loss),
            "loss_weights": _loss_weights(config),
        }
    if named["model.jit_compile"]:
        arguments["jit_compile"] = config.model["jit_compile"]
    arguments |= {group: _metrics(config, group) for group in METRICS if named[group]}
    replaced = [
        f"{name}: from the configuration, instead of the compiled model's own"
        for name, is_named in named.items()
        if is_named and compiled.get(name) is not None
    ]
    keras.Model.compile(model, **arguments)
    return [*replaced, *notes]


def names_optimizer(config: RunConfig) -> bool:
    """Whether the configuration names an optimizer; the default is for models that have none."""
    return "_target_" in config.optimizer


def compilation(config: RunConfig, model: keras.Model) -> dict[str, Any]:
    """Returns the parts of a model's compilation that the configuration does not name, by its keys.

    Objects are as in `runner.graph.plain_config`.
    """
    compiled = compiled_with(model)
    parts = {"loss": config.loss, **{group: getattr(config, group) for group in METRICS}}
    silent = {key: compiled.get(key) for key, named in parts.items() if not named}
    if config.loss is None:
        silent["loss_weights"] = compiled.get("loss_weights")
    if not names_optimizer(config):
        ((name, optimizer), *others) = optimizers_of(model)
        silent["optimizer"] = {name: optimizer, **dict(others)} if others else optimizer
    return {key: plain(value) for key, value in silent.items() if value is not None}


def _require_whole_optimizer(config: RunConfig, model: keras.Model) -> None:
    """Raises a ConfigError for parts of an optimizer beside a model that has one."""
    if config.optimizer:
        key = f"optimizer.{next(iter(config.optimizer))}"
        raise conflicts.PART_OF_OPTIMIZER.error(
            f"{key} is set, and the model has an optimizer of its own"
        )


def _require_called(model: keras.Model) -> None:
    """Raises a ConfigError for a model that overrides methods that a run does not call."""
    overridden = [method for method in _NOT_CALLED if overrides(model, method)]
    if overridden:
        raise ConfigError.of(
            f"model: {type(model).__name__} has a {' and a '.join(overridden)} of its own",
            "a run builds its own training function",
            "move what differs to train_step, test_step or compute_loss, which are called",
        )


def _require_loss(config: RunConfig, model: keras.Model) -> None:
    if config.loss is None and not (
        model.compiled or overrides(model, "compute_loss") or overrides(model, "train_step")
    ):
        raise ConfigError.of(
            "loss has no value",
            "the model has none of its own, because it is not compiled",
            "name one, such as loss=sparse_categorical_crossentropy",
        )


def _require_outputs(config: RunConfig, model: keras.Model) -> None:
    """Raises a ConfigError for losses and metrics of outputs that a functional model lacks.

    The outputs of other models are known only in a step.
    """
    names, loss = list(getattr(model, "output_names", None) or []), config.loss
    if not names:
        return
    if isinstance(loss, list) and len(loss) != len(names):
        raise ConfigError.of(
            f"loss lists {len(loss)} losses, and the model names {len(names)} outputs",
            "each output has one, in order",
            "write loss as a mapping from the names of outputs",
            tuple(names),
        )
    by_output = {
        "loss": loss if _is_by_name(loss) else {},
        **{
            group: {
                name: node for name, node in getattr(config, group).items() if _is_by_name(node)
            }
            for group in METRICS
        },
    }
    for key, outputs in by_output.items():
        for output in outputs:
            if output not in names:
                raise ConfigError.of(
                    f"{key}.{output}: the model has no output {output!r}",
                    choices=ranked(output, names),
                )
    for group in METRICS:
        if len(names) > 1 and len(by_output[group]) != len(getattr(config, group)):
            raise ConfigError.of(
                f"{group} names metrics of no output, and the model has {len(names)} outputs",
                "as in Keras, each metric belongs to one of several outputs",
                f"write all as {group}.OUTPUT.NAME",
                tuple(names),
            )


def _is_by_name(node: Any) -> bool:
    """Whether a part of the configuration has entries by name, and is no object to build."""
    return isinstance(node, Mapping) and "_target_" not in node


def _require_weighted(weights: Mapping[str, float], losses: Any) -> None:
    """Raises a ConfigError for `loss_weights` of outputs without a loss."""
    named = losses if _is_by_name(losses) else {}
    wrong = [name for name in weights if name not in named]
    if wrong:
        raise ConfigError.of(
            f"loss_weights.{wrong[0]} weighs no loss",
            "the configuration gives no loss to an output of that name",
            "" if named else "write loss as a mapping from outputs to losses",
            ranked(wrong[0], named),
        )


def _loss_weights(config: RunConfig) -> dict[str, float] | None:
    """Returns the weight of each loss, which Keras wants for all or none."""
    if not config.loss_weights:
        return None
    return {name: config.loss_weights.get(name, 1.0) for name in config.loss}


def _metrics(config: RunConfig, group: str) -> Any:
    """Returns the argument of `keras.Model.compile` for `metrics` or `weighted_metrics`."""
    by_output: dict[str, list[Any]] = {}
    flat = []
    for name, node in getattr(config, group).items():
        key = f"{group}.{name}"
        if _is_by_name(node):
            by_output[name] = [
                _metric(metric_name, f"{key}.{metric_name}", metric_node)
                for metric_name, metric_node in node.items()
            ]
        else:
            flat.append(_metric(name, key, node))
    if by_output and flat:
        raise ConfigError.of(
            f"{group} names metrics of outputs and others",
            "as in Keras, metrics belong to outputs by name, or all to the only output",
            f"write all as {group}.OUTPUT.NAME",
        )
    return by_output or flat or None


def _metric(name: str, key: str, node: Any) -> Any:
    """Returns a metric that reports itself by its name in the configuration."""
    if name == "loss":
        raise ConfigError.of(
            "two metrics are named loss",
            f"{key} would take the place of the loss, which is recorded by that name",
            "give the metric another name",
        )
    metric = resolved("metric", key, node)
    if isinstance(metric, keras.metrics.Metric):
        metric.name = name
        return metric
    if metric == name:
        return metric
    function = _accuracy if isinstance(metric, str) else named_call(key, metric)
    return keras.metrics.MeanMetricWrapper(function, name)


def _accuracy(labels: Any, outputs: Any) -> Any:
    """Returns what Keras chooses by the shapes of a batch for `accuracy`, if it is called so."""
    if outputs.shape[-1] == 1:
        return keras.metrics.binary_accuracy(labels, outputs)
    if len(labels.shape) < len(outputs.shape) or labels.shape[-1] == 1:
        return keras.metrics.sparse_categorical_accuracy(labels, outputs)
    return keras.metrics.categorical_accuracy(labels, outputs)


def resolved(kind: str, key: str, node: Any) -> Any:
    """Returns a loss or a metric, or for a loss a nested structure of them.

    Raises:
      ConfigError: when it cannot be built, or Keras knows no such name.
    """
    if isinstance(node, str):
        return _named(kind, key, node)
    if isinstance(node, Mapping) and "_target_" in node:
        built = build_target(key, node)
        if isinstance(built, partial) and inspect.isclass(built.func):
            raise ConfigError.of(
                f"{key}: {node['_target_']} is a class, and `_partial_` is true",
                "it would be constructed again for every batch",
                "delete `_partial_`",
            )
        if kind != "loss":
            return built
        _require_mean(key, built)
        return built if isinstance(built, keras.losses.Loss) else named_call(key, built)
    if isinstance(node, Mapping):
        return {name: resolved(kind, f"{key}.{name}", value) for name, value in node.items()}
    if isinstance(node, list):
        return [resolved(kind, f"{key}.{index}", value) for index, value in enumerate(node)]
    return node


def named_call(key: str, function: Any) -> Callable[[Any, Any], tf.Tensor]:
    """Returns a loss or a metric whose errors, and operations, are named by its key."""

    def called(labels: Any, outputs: Any) -> tf.Tensor:
        call = f"it was called with labels {described(labels)}, outputs {described(outputs)}"
        with tf.name_scope(operation_name(key)), calling(key, call):
            value = function(labels, outputs)
            if value is None:
                remedy = "end it with `return`"
                raise UserCodeError(Problem(f"{key} returned None", "", remedy), "")
            return value

    called.__name__ = str(getattr(function, "__name__", key))
    return called


def _require_mean(key: str, loss: Any) -> None:
    """Raises a ConfigError for an object that is no loss of a whole batch."""
    if isinstance(loss, keras.metrics.Metric):
        raise ConfigError.of(
            f"{key}: {type(loss).__name__} is a metric",
            "its values are of all batches since its reset",
            "name a class or function of keras.losses",
        )
    if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
        raise ConfigError.of(
            f"{key}: its reduction leaves a value for each example",
            "a class of keras.losses returns their mean, by default",
            "delete `reduction` from its arguments",
        )


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
    return name if kind == "loss" else measure


def _notes(config: RunConfig, model: keras.Model) -> Iterator[str]:
    steps = [step for step in ("train_step", "test_step") if overrides(model, step)]
    if steps:
        yield f"steps: {type(model).__name__} has a {' and a '.join(steps)} of its own"
    settings = {
        "run_eagerly": model.run_eagerly,
        "steps_per_execution": model.steps_per_execution != 1,
    }
    for name in (name for name, is_set in settings.items() if is_set):
        yield f"{name}: no effect from compile, because a run makes single steps of a graph"
    yield from _notes_on_logits(config.loss, model)


def _notes_on_logits(loss: Any, model: keras.Model) -> Iterator[str]:
    """Yields a line for each loss by name that takes probabilities and is given logits."""
    if isinstance(model, keras.Sequential):
        layers = {"": model.layers[-1]} if model.layers else {}
    else:
        names = getattr(model, "output_names", None) or []
        known = {layer.name: layer for layer in model.layers}
        layers = {name: known[name] for name in names if name in known}
    for output, layer in layers.items():
        name = loss.get(output) if isinstance(loss, Mapping) else loss
        takes_probabilities = isinstance(name, str) and "crossentropy" in name.lower()
        if takes_probabilities and getattr(layer, "activation", None) is keras.activations.linear:
            yield (
                f"loss: {name} takes probabilities, and {layer.name}, which has no activation, "
                "gives logits: use a class of keras.losses with from_logits=true, or an activation"
            )
