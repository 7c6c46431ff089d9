"""Builds the graph of a `model_fn` and its `input_fn` for a mode."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from runner.config.instantiation import build_target, locate_target
from runner.config.schema import RunConfig as ExperimentConfig
from runner.errors import ConfigError
from runner.estimator.export import (
    TensorServingInputReceiver,
    build_raw_serving_input_receiver_fn,
)
from runner.estimator.run_config import RunConfig
from runner.estimator.spec import EstimatorSpec, ModeKeys
from runner.graph.built_graph import Features, PredictionGraph
from runner.graph.graph_spec import GraphSpec, local_init_op
from runner.graph.input_pipeline import TrainingInput, without_autotuning
from runner.graph.new_graph import new_graph
from runner.graph.replica import Replica
from runner.graph.serving import first_example, named
from runner.graph.user_graph import UserCalls, UserGraph
from runner.internals.tensorflow import build_all_signature_defs


@dataclass(frozen=True)
class ModelFn:
    """A `model_fn` with its arguments `params` and `config`.

    Attributes:
      function: takes `features`, and any of `labels`, `mode`, `params` and `config`.
      params: the `params`, a dict or any other object; None if the function takes none.
      config: the `config`.

    Raises:
      ValueError: when there are `params` and the function takes none.
    """

    function: Callable[..., Any]
    params: Any
    config: RunConfig

    def __post_init__(self) -> None:
        if self.params is not None and "params" not in _arguments(self.function):
            raise ValueError(
                f"model_fn ({self.function}) does not include params argument, but params "
                f"({self.params}) is passed to Estimator."
            )

    def input(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any, Any]:
        """Calls an `input_fn`.

        Returns:
          Features, labels or None, and the input if the function returns a `tf.data.Dataset`.

        Raises:
          ValueError: when it returns a tuple or list that is not a pair.
        """
        with tf.device("/cpu:0"):
            result = self._call(input_fn, mode)
            if callable(result):  # `input_fn` is a builder of an input_fn.
                result = self._call(result, mode)
        source = None
        if isinstance(result, tf.data.Dataset):
            # As deep as the program prefetches, and no deeper: its position is saved.
            dataset = result if mode == ModeKeys.TRAIN else without_autotuning(result)
            source = TrainingInput(dataset, prefetch=False)
            result, _ = source.next()
        if isinstance(result, list | tuple):
            if len(result) != 2:
                raise ValueError("input_fn should return (features, labels) as a len 2 tuple.")
            return result[0], result[1], source
        return result, None, source

    def spec(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        """Calls the `model_fn`.

        Raises:
          ValueError: when there are labels and it takes none, or when it does not return an
            `EstimatorSpec` of this mode.
        """
        arguments = {"features": features}
        if "labels" in _arguments(self.function):
            arguments["labels"] = labels
        elif labels is not None:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        spec = self._call(self.function, mode, **arguments)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("model_fn should return an EstimatorSpec.")
        if spec.mode is None:  # From a model_fn that does not take the mode.
            return EstimatorSpec(**{**spec._asdict(), "mode": mode})
        if spec.mode != mode:
            raise ValueError(
                f"model_fn returns an EstimatorSpec with mode {spec.mode!r}: {mode!r} is built"
            )
        return spec

    def _call(self, function: Callable[..., Any], mode: str, **arguments: Any) -> Any:
        params = copy.deepcopy(self.params or {})
        optional = {"mode": mode, "params": params, "config": self.config}
        arguments |= {name: optional[name] for name in _arguments(function) if name in optional}
        return function(**arguments)


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments that a function, or a partial one, still takes.

    `*args` and `**kwargs` do not count.
    """
    bound = function.keywords if isinstance(function, partial) else ()
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind not in variadic and parameter.name not in bound
    ]


def training_graph(model: ModelFn, input_fn: Callable[..., Any]) -> GraphSpec:
    """Adds the graph of mode TRAIN to the default graph."""
    features, labels, source = model.input(input_fn, ModeKeys.TRAIN)
    spec = model.spec(features, labels, ModeKeys.TRAIN)
    return GraphSpec(
        loss=spec.loss,
        train_op=spec.train_op,
        input=source,
        scaffold=spec.scaffold,
        hooks=spec.training_hooks,
        chief_hooks=spec.training_chief_hooks,
    )


def evaluation_graph(model: ModelFn, input_fn: Callable[..., Any]) -> GraphSpec:
    """Adds the graph of mode EVAL to the default graph."""
    features, labels, source = model.input(input_fn, ModeKeys.EVAL)
    spec = model.spec(features, labels, ModeKeys.EVAL)
    for name in ("loss", "global_step"):
        if name in spec.eval_metric_ops:
            raise ValueError(
                f'Metric with name "{name}" is not allowed, because Estimator already defines a '
                "default metric with the same name."
            )
    return GraphSpec(
        loss=spec.loss,
        evaluation=spec.eval_metric_ops,
        input=source,
        scaffold=spec.scaffold,
        hooks=spec.evaluation_hooks,
    )


def serving_graph(model: ModelFn, receiver_fn: Callable[[], Any]) -> GraphSpec:
    """Adds the graph of mode PREDICT to the default graph, fed by a receiver.

    Raises:
      ValueError: when no signature can be served.
    """
    receiver = receiver_fn()
    spec = model.spec(receiver.features, None, ModeKeys.PREDICT)
    signatures = build_all_signature_defs(
        receiver.receiver_tensors, spec.export_outputs, receiver.receiver_tensors_alternatives
    )
    if not signatures:
        raise ValueError("export_outputs: none can be computed from the receiver_tensors")
    return GraphSpec(scaffold=spec.scaffold, signatures=signatures)


class ModelFnGraph(UserGraph):
    """The graph of a configuration with a `model_fn`.

    The `config` that the `model_fn` gets has the seed, and the configured `run_dir` as `model_dir`.
    """

    key, data_key = "model_fn", "input_fns"

    def function(self) -> Callable[..., GraphSpec]:
        """Returns the function that calls the `model_fn` and its `input_fn` for a `mode`.

        Raises:
          ConfigError: when a target does not fit.
        """
        config = self.config
        self._model_fn()

        def graph(mode: str) -> GraphSpec:
            model = self._model_fn()
            if mode == "export":
                return _serving_graph(config, model)
            build = training_graph if mode == "train" else evaluation_graph
            return build(model, _input_fn(config, mode))

        return graph

    def _model_fn(self) -> ModelFn:
        """Builds the `model_fn`, again for each graph: its builder may keep tensors of the last."""
        config = self.config
        function = _function("model_fn", config.model_fn or {}, "features")
        takes_params = "params" in _arguments(function)
        settings = RunConfig(tf_random_seed=config.seed).replace(model_dir=config.run_dir)
        return ModelFn(function, config.params if config.params or takes_params else None, settings)

    def input_key(self, mode: str) -> str:
        """Returns the key of the mode's `input_fn`."""
        return f"input_fns.{mode}"

    def predicting(self, features: Features, checkpoint: str) -> PredictionGraph:
        """Builds the graph of mode PREDICT over the features of an `input_fn`, or over others."""
        config = self.config
        with new_graph(config, Replica()) as graph, self.calling("predict"):
            read = features if callable(features) else _input_fn(config, features)
            model = self._model_fn()
            batch, _, source = model.input(read, ModeKeys.PREDICT)
            spec = model.spec(batch, None, ModeKeys.PREDICT)
            local = local_init_op(spec.scaffold, *([] if source is None else [source.initializer]))
            return PredictionGraph(
                graph=graph,
                outputs=named("outputs", spec.predictions),
                restorer=spec.scaffold.saver or tf.compat.v1.train.Saver(),
                initializers=[local or tf.compat.v1.train.Scaffold.default_local_init_op()],
                cardinality=None if source is None else source.cardinality(),
                explaining=UserCalls(self, "predict").explaining,
            )


def _function(key: str, node: Mapping[str, Any], argument: str) -> Callable[..., Any]:
    """Returns the function that a target is or returns.

    A target that takes `argument` is the function. Any other target is called with the configured
    arguments and must return the function.
    """
    target = locate_target(key, node)
    if argument in _arguments(target):
        function: Callable[..., Any] = build_target(key, {**node, "_partial_": True})
        return function
    result = build_target(key, node)
    if not callable(result):
        raise ConfigError.of(
            f"{key}: {node['_target_']} takes no {argument} and returns {type(result).__name__}",
            f"it is neither a {key} nor a function that returns one",
        )
    return result  # type: ignore[no-any-return]


def _input_fn(config: ExperimentConfig, mode: str) -> Callable[..., Any]:
    if mode not in config.input_fns:
        raise ConfigError.of(
            f"input_fns.{mode} is missing",
            f"mode {mode} reads it",
            f"give input_fns.{mode} the `_target_` of an input_fn"
            + (", or evaluate.split=validation" if mode == "test" else ""),
        )
    function: Callable[..., Any] = build_target(
        f"input_fns.{mode}", {**config.input_fns[mode], "_partial_": True}
    )
    return function


def _serving_graph(config: ExperimentConfig, model: ModelFn) -> GraphSpec:
    """Adds the graph of mode PREDICT, fed as configured, or by the features themselves."""
    if "serving" in config.input_fns:
        receiver = _input_fn(config, "serving")()
        return serving_graph(model, receiver if callable(receiver) else lambda: receiver)
    split = next(name for name in ("test", "validation") if name in config.input_fns)
    read = partial(model.input, _input_fn(config, split), ModeKeys.PREDICT)
    with tf.Graph().as_default():
        features, _, source = read()
        specs = {name: _fed_spec(name, value, split) for name, value in _named(features).items()}
    raw = build_raw_serving_input_receiver_fn(specs)

    def single_tensor_receiver() -> TensorServingInputReceiver:
        fed = raw().receiver_tensors
        return TensorServingInputReceiver(fed["features"], fed)

    spec = serving_graph(model, raw if isinstance(features, dict) else single_tensor_receiver)
    # Tensors without a dataset may come from queues, which nothing would fill.
    return spec if source is None else replace(spec, example=lambda: _example(read))


def _fed_spec(name: str, feature: Any, split: str) -> tf.TensorSpec:
    if isinstance(feature, tf.Tensor):
        return tf.TensorSpec(feature.shape, feature.dtype)
    feature_class = type(feature).__name__
    raise ConfigError.of(
        "input_fns.serving is missing",
        f"only tensors can be fed, and {name!r} of input_fns.{split} is a {feature_class}",
        "give input_fns.serving the `_target_` of a serving_input_receiver_fn",
    )


def _named(features: Any) -> dict[str, tf.Tensor]:
    return features if isinstance(features, dict) else {"features": features}


def _example(read: Callable[[], tuple[Any, Any, Any]]) -> dict[str, Any]:
    """Returns the features of the first example, arrays whose first dimension is 1."""
    with tf.Graph().as_default():
        features, _, source = read()
        return first_example(features, source.initializer)
