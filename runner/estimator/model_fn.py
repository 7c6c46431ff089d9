"""Builds the graph of a `model_fn` and its `input_fn` for a mode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from runner.config.instantiation import build_target, locate_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.built_graph import Features, PredictionGraph
from runner.graph.graph_spec import GraphSpec, local_init_op
from runner.graph.input_pipeline import TrainingInput, without_autotuning
from runner.graph.new_graph import new_graph
from runner.graph.replica import Replica
from runner.graph.serving import first_example, named
from runner.graph.user_graph import UserGraph
from runner.internals.original_estimator import original_class, original_estimator
from runner.internals.tensorflow import build_all_signature_defs

_ORIGINAL: Any = original_estimator()
_MODES: Any = _ORIGINAL.ModeKeys


@dataclass(frozen=True)
class ModelFn:
    """The `model_fn` of an original Estimator, which passes `params` and `config` on."""

    estimator: Any

    def input(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any, Any]:
        """Calls an `input_fn`.

        Returns:
          Features, labels or None, and the input if the function returns a `tf.data.Dataset`.

        Raises:
          ValueError: when it returns a tuple or list that is not a pair.
        """
        result = self.estimator._call_input_fn(input_fn, mode)
        if callable(result):  # `input_fn` is a builder of an input_fn.
            result = self.estimator._call_input_fn(result, mode)
        source = None
        if isinstance(result, tf.data.Dataset):
            # As deep as the program prefetches, and no deeper: its position is saved.
            dataset = result if mode == _MODES.TRAIN else without_autotuning(result)
            source = TrainingInput(dataset, prefetch=False)
            result, _ = source.next()
        return *original_class().estimator_util.parse_iterator_result(result), source

    def spec(self, features: Any, labels: Any, mode: str) -> Any:
        """Calls the `model_fn`, and returns its `EstimatorSpec`.

        Raises:
          ValueError: when there are labels and it takes none, or when it does not return an
            `EstimatorSpec` of this mode.
        """
        spec = self.estimator._call_model_fn(features, labels, mode, self.estimator.config)
        if spec.mode not in (None, mode):  # None from a model_fn that does not take the mode.
            raise ValueError(
                f"model_fn returns an EstimatorSpec with mode {spec.mode!r}: {mode!r} is built"
            )
        return spec

    def training(self, input_fn: Callable[..., Any]) -> GraphSpec:
        """Adds the graph of mode TRAIN to the default graph."""
        features, labels, source = self.input(input_fn, _MODES.TRAIN)
        spec = self.spec(features, labels, _MODES.TRAIN)
        return GraphSpec(
            loss=spec.loss,
            train_op=spec.train_op,
            input=source,
            scaffold=spec.scaffold,
            hooks=spec.training_hooks,
            chief_hooks=spec.training_chief_hooks,
        )

    def evaluation(self, input_fn: Callable[..., Any]) -> GraphSpec:
        """Adds the graph of mode EVAL to the default graph."""
        features, labels, source = self.input(input_fn, _MODES.EVAL)
        spec = self.spec(features, labels, _MODES.EVAL)
        for name in ("loss", "global_step"):
            if name in spec.eval_metric_ops:
                raise ValueError(
                    f'Metric with name "{name}" is not allowed, because Estimator already defines '
                    "a default metric with the same name."
                )
        return GraphSpec(
            loss=spec.loss,
            evaluation=spec.eval_metric_ops,
            input=source,
            scaffold=spec.scaffold,
            hooks=spec.evaluation_hooks,
        )

    def serving(self, receiver: Any) -> GraphSpec:
        """Adds the graph of mode PREDICT to the default graph, fed by a receiver.

        Raises:
          ValueError: when no signature can be served.
        """
        spec = self.spec(receiver.features, None, _MODES.PREDICT)
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
        self._model_fn()

        def graph(mode: str) -> GraphSpec:
            model = self._model_fn()
            if mode == "export":
                return _serving_graph(self.config, model)
            build = model.training if mode == "train" else model.evaluation
            return build(_input_fn(self.config, mode))

        return graph

    def _model_fn(self) -> ModelFn:
        """Builds the `model_fn`, again for each graph: its builder may keep tensors of the last."""
        config = self.config
        function = _function("model_fn", config.model_fn or {}, "features")
        takes_params = "params" in _arguments(function)
        params = config.params if config.params or takes_params else None
        try:
            settings = _ORIGINAL.RunConfig(tf_random_seed=config.seed)
            return ModelFn(_ORIGINAL.Estimator(function, config.run_dir, settings, params))
        except (ValueError, TypeError) as error:
            raise ConfigError.of("model_fn: its Estimator cannot be made", str(error)) from error

    def input_key(self, mode: str) -> str:
        """Returns the key of the mode's `input_fn`."""
        return f"input_fns.{mode}"

    def predicting(self, features: Features) -> PredictionGraph:
        """Builds the graph of mode PREDICT over the features of an `input_fn`, or over others."""
        config = self.config
        with new_graph(config, Replica()) as graph, self.calling("predict"):
            read = features if callable(features) else _input_fn(config, features)
            model = self._model_fn()
            batch, _, source = model.input(read, _MODES.PREDICT)
            spec = model.spec(batch, None, _MODES.PREDICT)
            local = local_init_op(spec.scaffold, *([] if source is None else [source.initializer]))
            return PredictionGraph(
                graph=graph,
                outputs=named("outputs", spec.predictions),
                restorer=spec.scaffold.saver or tf.compat.v1.train.Saver(),
                initializers=[local or tf.compat.v1.train.Scaffold.default_local_init_op()],
                cardinality=None if source is None else source.cardinality(),
                explaining=partial(self.explaining, "predict"),
            )


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


def _function(key: str, node: Mapping[str, Any], argument: str) -> Callable[..., Any]:
    """Returns the function that a target is or returns.

    A target that takes `argument` is the function. Any other target is called with the configured
    arguments and must return the function.
    """
    is_function = argument in _arguments(locate_target(key, node))
    function: Callable[..., Any] = build_target(key, {**node, "_partial_": is_function})
    if not callable(function):
        raise ConfigError.of(
            f"{key}: {node['_target_']} takes no {argument} and returns {type(function).__name__}",
            f"it is neither a {key} nor a function that returns one",
        )
    return function


def _input_fn(config: RunConfig, mode: str) -> Callable[..., Any]:
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


def _serving_graph(config: RunConfig, model: ModelFn) -> GraphSpec:
    """Adds the graph of mode PREDICT, fed as configured, or by the features themselves."""
    if "serving" in config.input_fns:
        receiver = _input_fn(config, "serving")()
        return model.serving(receiver() if callable(receiver) else receiver)
    split = next(name for name in ("test", "validation") if name in config.input_fns)
    read = partial(model.input, _input_fn(config, split), _MODES.PREDICT)
    with tf.Graph().as_default():
        features, _, source = read()
    single = not isinstance(features, dict)
    fed = {
        name: _placeholder(name, feature, split)
        for name, feature in ({"features": features} if single else features).items()
    }
    export = _ORIGINAL.export
    spec = model.serving(
        export.TensorServingInputReceiver(fed["features"], fed)
        if single
        else export.ServingInputReceiver(fed, fed)
    )
    # Tensors without a dataset may come from queues, which nothing would fill.
    return spec if source is None else replace(spec, example=lambda: _example(read))


def _placeholder(name: str, feature: Any, split: str) -> tf.Tensor:
    if isinstance(feature, tf.Tensor):
        shape = tf.TensorShape([None]).concatenate(feature.shape[1:])
        return tf.compat.v1.placeholder(feature.dtype, shape, str(name))
    feature_class = type(feature).__name__
    raise ConfigError.of(
        "input_fns.serving is missing",
        f"only tensors can be fed, and {name!r} of input_fns.{split} is a {feature_class}",
        "give input_fns.serving the `_target_` of a serving_input_receiver_fn",
    )


def _example(read: Callable[[], tuple[Any, Any, Any]]) -> dict[str, Any]:
    """Returns the features of the first example, arrays whose first dimension is 1."""
    with tf.Graph().as_default():
        features, _, source = read()
        return first_example(features, source.initializer)
