"""The graph of a configuration with a `model`: data, model, loss, optimizer, metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig, ScaffoldConfig
from runner.config.validation import require_objective
from runner.errors import ConfigError
from runner.graph.batch_norm import as_frozen, frozen_norms, statistics_notes
from runner.graph.built_graph import (
    BuiltGraph,
    Features,
    GraphMaker,
    PredictionGraph,
    ServingGraph,
    Training,
)
from runner.graph.calls import Calls
from runner.graph.devices import Devices, devices_of
from runner.graph.eager_twin import eager_twin
from runner.graph.evaluation import Evaluation, InGraphEvaluation
from runner.graph.experiment import Data, Model, Sized, features_of, overrides_steps
from runner.graph.input_pipeline import TrainingInput, without_autotuning
from runner.graph.keras_optimizer import compiled_optimizer, optimizer_notes
from runner.graph.keras_serving import prediction_graph, serving_graph
from runner.graph.keras_steps import ModelSteps
from runner.graph.measures import Batch
from runner.graph.objective import Objective
from runner.graph.optimization import Schedule
from runner.graph.precision import (
    build_model,
    dtype_policy,
    is_compiled,
    new_graph,
)
from runner.graph.replica import Replica
from runner.graph.serving import first_example
from runner.graph.splits import build_data, data_to_predict, one_pass, training_input
from runner.graph.training_step import TrainingStep
from runner.graph.variables import (
    checkpoint_saver,
    keras_slots,
    name_variables,
    saved_as,
    variable_specs,
    whole_name,
)
from runner.restoration.model_variables import (
    addresses,
    initializers,
    keras_variables,
    layer_facts,
    model_variables,
    which_train,
)
from runner.restoration.variables import WARM_STARTED, assign_owners, classify
from runner.restoration.weights_layout import weights_layout


class KerasGraph(GraphMaker):
    """The graph of `data`, `model`, `loss`, `metrics` and `optimizer`."""

    def build(self, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
        """Builds the forward passes that train and evaluate, and the update of the variables."""
        # An evaluation needs one device, and the machine may have no more.
        config, devices = self.config, devices_of(self.config.devices) if train else Devices()
        with new_graph(config, replica) as graph, devices.scope(), dtype_policy(config):
            data = build_data(config)
            model = build_model(config)
            per_step = config.train.accumulate * devices.batches
            read = partial(training_input, config, data, replica, per_step=per_step)
            if overrides_steps(model):
                source = read(labelled=False) if train else None
                return self._with_model_steps(model, data, source, split=split, devices=devices)
            objective, calls = Objective(config, model), Calls(config)
            notes = list(objective.notes)
            if not config.optimizer:
                config = replace(config, optimizer=compiled_optimizer(model))
                notes += optimizer_notes(config, model)
            source = read(labelled=objective.needs_labels) if train else None
            parts = _Parts(config, model, data, source, calls)
            step = None
            if source is not None:
                if _freezes(config) and not getattr(model, "inputs", None):
                    _create_variables(calls, model, source)
                norms = frozen_norms(model, parts.policies(model_variables(model)))
                notes += statistics_notes(norms)
                frozen = [norm for norm, stays in norms.items() if stays]
                called = devices.called(model)
                forward = _forward(calls, called, objective, train=True, frozen=frozen)
                step = TrainingStep(config, source, forward, replica=replica, devices=devices)
            evaluation = _evaluation(calls, split, data, model=model, objective=objective)
            objective.keep_out_of_checkpoints(graph)
            model_vars = parts.variables()
            parts.require_sources(model_vars)
            trained = [*parts.trained(model_vars).values()]
            training = step.build(trained, evaluation.metrics, model) if step else None
            if source is not None:
                notes += devices.notes(model, data, source, parts=replica.parts) + replica.notes()
            if training is not None and config.callbacks:
                training = replace(training, epoch=objective.epoch(training.train_op, graph))
            return parts.built(model_vars, training, evaluation, notes=notes)

    def _with_model_steps(
        self,
        model: Any,
        data: Data,
        source: TrainingInput | None,
        *,
        split: str,
        devices: Devices,
    ) -> BuiltGraph:
        """Builds the graph of a model that overrides `train_step` or `test_step`."""
        config = self.config
        steps = ModelSteps(config, model, devices)
        parts = _Parts(config, model, data, source, Calls(config))
        parts.require_sources(parts.variables())
        norms: dict[Any, bool] = {}
        if source and _freezes(config):
            # The step finds the variables that train by itself: they are frozen before it is
            # traced, and the model may create them only when it is called.
            steps.create_variables(source)
            weights = keras_variables(model)
            policies = parts.policies(model_variables(model))
            for name, policy in policies.items():
                if not policy.trainable:
                    weights[name].trainable = False
            norms = frozen_norms(model, policies)
            for norm, stays in norms.items():
                norm.trainable = not stays
        training = steps.train(source) if source else None
        batches, cardinality = one_pass(split, data, labelled=False)
        evaluation = steps.evaluation(split, without_autotuning(batches), cardinality)
        if evaluation.metrics:
            require_objective(config.train.objective, evaluation.metrics)
        steps.keep_out_of_checkpoints(trains=source is not None)
        optimizer_vars = steps.optimizer_variables()
        model_vars = {
            name: variable
            for name, variable in parts.variables().items()
            if variable.ref() not in optimizer_vars
        }
        notes = [*steps.notes(), *statistics_notes(norms)]
        notes += devices.notes(model, data, source) if source else []
        return parts.built(model_vars, training, evaluation, notes=notes)

    def serving(self, checkpoint: str) -> ServingGraph:
        """Builds the forward pass alone, of features that are fed."""
        return serving_graph(self.config, checkpoint)

    def predicting(self, features: Features, checkpoint: str) -> PredictionGraph:
        """Builds the forward pass, or `predict_step` of a model that overrides it."""
        return prediction_graph(self.config, features, checkpoint)

    def example(self) -> Mapping[str, Any]:
        """Returns the features of the first example of the test split."""
        with tf.Graph().as_default():
            dataset = data_to_predict(self.config)
            batches = tf.compat.v1.data.make_initializable_iterator(dataset)
            return first_example(features_of(batches.get_next()), batches.initializer)


@dataclass(frozen=True)
class _Parts:
    """The parts of the default graph while it is built.

    Attributes:
      config: the configuration, with the optimizer that the model was compiled with if it has none.
      model: the model.
      data: the data.
      source: the training input; None in a graph that only evaluates.
      calls: the calls of user code.
    """

    config: RunConfig
    model: Any
    data: Data
    source: TrainingInput | None
    calls: Calls

    def variables(self) -> dict[str, tf.Variable]:
        """Names the variables of the graph in the model's order, in which Keras saves slots."""
        model_names = model_variables(self.model)
        variables = name_variables(tf.compat.v1.global_variables(), model_names)
        return {name: variables[name] for name in (*model_names, *variables) if name in variables}

    def policies(self, variables: Mapping[str, tf.Variable]) -> dict[str, ScaffoldConfig]:
        """Returns variable -> the scaffold that owns it, whose settings decide how it trains."""
        config = self.config
        wholes = {name: whole_name(name, variable) for name, variable in variables.items()}
        states = {whole: classify(whole, model=True) for whole in wholes.values()}
        candidates = {name: state for name, state in states.items() if state in WARM_STARTED}
        collision, named = config.restoration.collision, addresses(self.model)
        claims = assign_owners(candidates, config.scaffolds, collision, addresses=named).claims
        return {
            name: config.scaffolds[claims[whole][0]]
            for name, whole in wholes.items()
            if whole in claims
        }

    def trained(
        self, variables: Mapping[str, tf.Variable]
    ) -> dict[str, tuple[tf.Variable, Schedule]]:
        """Returns name -> variable and schedule, for the variables that train."""
        policies, trains = self.policies(variables), which_train(self.model, variables)
        trained = {}
        for name, variable in variables.items():
            policy = policies.get(name, ScaffoldConfig())
            if trains[name] and policy.trainable:
                schedule = Schedule(policy.freeze_until_step, policy.learning_rate_multiplier)
                trained[name] = (variable, schedule)
        return trained

    def require_sources(self, variables: Mapping[str, tf.Variable]) -> None:
        """Raises a ConfigError for values that the model's `_target_` loads and nothing restores.

        In a graph Keras's assignments are operations that nothing runs.
        """
        policies, graph = self.policies(variables), tf.compat.v1.get_default_graph()
        initialised = {variable.initializer for variable in variables.values()}
        assigned = {
            operation.inputs[0].op
            for operation in graph.get_operations()
            if operation.type == "AssignVariableOp" and operation not in initialised
        }
        lost = [
            name
            for name, variable in variables.items()
            if variable.handle.op in assigned
            and not (name in policies and policies[name].checkpoint)
        ]
        if lost:
            shown = ", ".join(lost[:3]) + f" and {len(lost) - 3} more" * (len(lost) > 3)
            raise ConfigError.of(
                f"model: {self.config.model['_target_']} loads values for {shown}",
                "a run takes pretrained values through scaffolds, which its plan shows and a "
                "resumed run leaves out",
                "name the file as a scaffold's checkpoint: scaffolds.NAME.checkpoint=FILE "
                "'scaffolds.NAME.variables.include=[*]'",
            )

    def built(
        self,
        model_vars: Mapping[str, tf.Variable],
        training: Training | None,
        evaluation: Evaluation,
        *,
        notes: Sequence[str],
    ) -> BuiltGraph:
        """Returns the built graph, with its variables named and its saver added."""
        model, source = self.model, self.source
        graph_variables = tf.compat.v1.global_variables()
        variables = name_variables(graph_variables, model_variables(model), training)
        weights = keras_variables(model)
        return BuiltGraph(
            graph=tf.compat.v1.get_default_graph(),
            variables=variables,
            specs=variable_specs(
                variables,
                which_train(model, model_vars),
                policies=self.policies(model_vars),
                training=training,
                initializers=initializers(model),
                facts=layer_facts(model),
            ),
            training=training,
            evaluation=evaluation,
            saver=_saver(self.config, variables, self.trained(model_vars), source=source),
            calls=self.calls,
            sizes=self.data.sizes() if isinstance(self.data, Sized) else {},
            notes=tuple(notes),
            eager=partial(eager_twin, self.config, source, variables) if source else None,
            layout=partial(weights_layout, model, weights) if weights else None,
            slots=keras_slots(variables, training) if training else None,
        )


def _saver(
    config: RunConfig,
    variables: Mapping[str, tf.Variable],
    trained: Iterable[str],
    *,
    source: TrainingInput | None,
) -> tf.compat.v1.train.Saver:
    """Returns the saver; without training it may read the averages of the trained variables."""
    averaged = config.train.ema_decay is not None or config.optimizer.get("use_ema")
    averages = source is None and averaged and config.train.evaluate_ema
    saved = saved_as(variables, frozenset(trained) if averages else frozenset())
    return checkpoint_saver(config, saved, source if config.train.save_input else None)


def _freezes(config: RunConfig) -> bool:
    return not all(scaffold.trainable for scaffold in config.scaffolds.values())


def _create_variables(calls: Calls, model: Model, source: TrainingInput) -> None:
    """Creates the variables of a model that has none before its first call."""
    features = features_of(source.next()[0])
    call = tf.function(partial(calls.model, model), autograph=False)
    call.get_concrete_function(features, training=False)


def _forward(
    calls: Calls, model: Model, objective: Objective, *, train: bool, frozen: Sequence[Any] = ()
) -> Any:
    """Wraps the forward pass in a tf.function, whose side effects the graph keeps.

    After a plain call in a graph batch-norm statistics stand still and dropout repeats its mask.
    The batch-norm layers `frozen` keep their statistics. `model` is what is called.
    """

    def forward(batch: Any) -> Any:
        features, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if train:
            objective.begin_batch()
        with as_frozen(frozen):
            outputs = calls.model(model, features, training=train)
        measure = objective.means if train else objective.add
        return measure(Batch(features, labels, weights, outputs, train))

    # The training step compiles it together with its gradient. None: TensorFlow decides.
    jit_compile = True if is_compiled(calls.config) and not train else None
    return tf.function(forward, autograph=False, jit_compile=jit_compile)


def _evaluation(
    calls: Calls, split: str, data: Data, *, model: Model, objective: Objective
) -> InGraphEvaluation:
    with tf.name_scope(split):
        dataset, cardinality = one_pass(split, data, labelled=objective.needs_labels)
        dataset = without_autotuning(dataset)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        totals = _forward(calls, model, objective, train=False)(iterator.get_next())
        results = tf.function(objective.pass_result, autograph=False)()
        begin = iterator.initializer
        if results:
            begin = tf.group(begin, objective.begin())
    sums = {name: total for name, (total, _) in totals.items()}
    counts = {name: count for name, (_, count) in totals.items()}
    evaluation = InGraphEvaluation(split, begin, sums, counts, results, cardinality)
    require_objective(calls.config.train.objective, evaluation.metrics)
    return evaluation
