"""The graph of a configuration with a `model`: steps that Keras traces, run by a session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.config.validation import require_objective
from runner.graph import keras_serving
from runner.graph.averages import AveragedWeights
from runner.graph.built_graph import BuiltGraph, Features, GraphMaker, Training
from runner.graph.class_weights import weighted_by_class
from runner.graph.contracts import Sized
from runner.graph.evaluation import InGraphEvaluation
from runner.graph.input_pipeline import TrainingInput, without_autotuning
from runner.graph.keras_steps import SCALE, KerasSteps
from runner.graph.model_values import ModelValues
from runner.graph.optimizer_state import (
    averages_of,
    learning_rates_of,
    named_state,
    optimizers_of,
)
from runner.graph.program import Program, as_in_fit, load_program, unused_name
from runner.graph.replica import Replica
from runner.graph.splits import needs_labels, one_pass, training_batches
from runner.graph.step_errors import StepErrors
from runner.graph.traces import SessionCopy, Trace
from runner.graph.variables import (
    ROLLBACKS,
    checkpoint_saver,
    keras_slots,
    rollback_count,
    saved_as,
    variable_specs,
)
from runner.internals.keras import layers_of, trained_by
from runner.internals.tensorflow import dataset_in_graph
from runner.restoration.model_variables import (
    initializers,
    keras_variables,
    layer_facts,
    tensorflow_variable,
)
from runner.restoration.variables import OF_MODEL
from runner.restoration.weights_layout import weights_layout

CALLBACKS = "callbacks"
"""The variable by which checkpoints hold the state of callbacks."""


class KerasGraph(GraphMaker):
    """The graph of `data`, `model`, `loss`, `metrics` and `optimizer`."""

    def build(self, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
        """Traces the model's steps eagerly, and imports them into a new graph."""
        config = self.config
        with as_in_fit(config):
            program = load_program(config)
            labelled = needs_labels(program.model)
            batches, length = None, None
            if train:
                batches, length = training_batches(config, program.data, labelled=labelled)
                batches = weighted_by_class(batches, config.class_weight)
            evaluated, cardinality = one_pass(split, program.data, labelled=labelled)
            program.build((batches or evaluated).element_spec)
            steps = KerasSteps(program, length)
            # First, because it makes the metrics, which a training step begins by resetting.
            test_trace = steps.test(evaluated.element_spec)
            train_trace = steps.train(batches.element_spec) if batches is not None else None
            session = _InSession(program, steps, length, [train_trace, test_trace])
            with tf.Graph().as_default() as graph, replica.scope():
                tf.compat.v1.set_random_seed(config.seed)
                training = None
                session.begin()
                if batches is not None and train_trace is not None:
                    source = TrainingInput(
                        dataset_in_graph(replica.shard(batches)),
                        prefetch=getattr(program.data, "prefetch", True),
                        replicas=replica.count,
                        epoch_length=length,
                    )
                    training = session.training(source, train_trace)
                evaluation = session.evaluation(split, evaluated, cardinality, trace=test_trace)
                return session.built(graph, training, evaluation)

    def save(self, checkpoint: str, folder: Path) -> None:
        """Writes the forward pass."""
        keras_serving.save(self.config, checkpoint, folder)

    def predictions(
        self, features: Features, checkpoint: str
    ) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yields what the model's `predict_step` returns."""
        return keras_serving.predictions(self.config, features, checkpoint)

    def example(self) -> Mapping[str, Any]:
        """Returns the features of the first example of the test split."""
        return keras_serving.example(self.config)


class _InSession:
    """A program's steps in the default graph.

    Args:
      program: the program.
      steps: traces its steps.
      epoch_length: the global steps of an epoch; None without epochs.
      traces: the traces that the graph will hold; None for those that it lacks.
    """

    def __init__(
        self,
        program: Program,
        steps: KerasSteps,
        epoch_length: int | None,
        traces: Collection[Trace | None],
    ) -> None:
        self._program, self._steps, self._config = program, steps, program.config
        self._metrics = program.metric_variables()
        self._reset = steps.reset()
        self._weights = program.weights()
        self._optimizer = program.optimizer_variables()
        named = {**self._weights, **self._optimizer, **self._metrics, **steps.state()}
        for trace in traces:
            known = {id(variable) for variable in named.values()} | {id(program.step)}
            for variable in trace.variables if trace else ():
                if id(variable) not in known:
                    # Those of a layer may share a name, as the states of an LSTM do.
                    name = f"program/{variable.name.partition(':')[0]}"
                    named[unused_name(name, named)] = variable
        local = set() if epoch_length else set(self._metrics)
        if not self._config.callbacks:
            local |= self._constant_rates()
        layers = layers_of(program.model)
        self._copy = SessionCopy(named, layers, zeros=self._zeros(), local=local)
        self._brought = program.brought_along()
        self._first_values = {name: _initializer_of(variable) for name, variable in named.items()}
        self._errors = StepErrors(self._config)

    def begin(self) -> None:
        """Adds the global step and the model's weights, in the order in which Keras saves them."""
        step = tf.compat.v1.train.get_or_create_global_step()
        self._copy.bind(self._program.step, step)
        for name in self._weights:
            self._copy.variable(name)

    def training(self, source: TrainingInput, trace: Trace) -> Training:
        """Adds the training step."""
        config, batches, waited = self._config, [], []
        for _ in range(config.train.accumulate):
            with tf.control_dependencies(waited[-1:]):
                batch, seconds = source.next()
            batches.append(batch)
            waited.append(seconds)
        imported = self._copy.add(trace, batches, name="train")
        self._errors.add(imported, trace)
        values, rate = imported.outputs
        step = tf.compat.v1.train.get_global_step()
        with tf.control_dependencies([imported.done]):
            train_op = step.assign_add(1, read_value=False)
        with tf.control_dependencies([train_op]):
            after = tf.identity(step.read_value())
        pairs = [
            pair
            for _, optimizer in optimizers_of(self._program.model)
            for pair in averages_of(optimizer)
        ]
        in_session = self._session_variables()
        return Training(
            train_op=train_op,
            step=after,
            values=values,
            rollbacks=rollback_count(config),
            input_initializer=source.initializer,
            input_seconds=tf.add_n(waited),
            input_name="data.train()",
            saved_input=source.state if config.train.save_input else None,
            learning_rate=rate,
            learning_rate_scale=self._copy.variables.get(SCALE),
            averages=AveragedWeights(
                [(in_session[id(weight)], in_session[id(average)]) for weight, average in pairs]
            )
            if pairs
            else None,
            epoch_length=source.epoch_length,
            callback_state=_callback_state() if config.callbacks else None,
            shared_state=dict(self._shared_state()),
            values_are_cheap=True,
            source=source,
        )

    def evaluation(
        self, split: str, batches: tf.data.Dataset, cardinality: int | None, *, trace: Trace | None
    ) -> InGraphEvaluation:
        """Adds the evaluation of a split, with metrics apart from those of training."""
        values: dict[str, tf.Tensor] = {}
        with tf.name_scope(split):
            dataset = without_autotuning(dataset_in_graph(batches))
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            batch = iterator.get_next()
        begin = [iterator.initializer]
        if trace is not None:
            copies = self._copy.copies(self._metrics)
            imported = self._copy.add(trace, batch, name=split, apart=copies)
            self._errors.add(imported, trace)
            values = imported.outputs
            begin.append(self._copy.add(self._reset, name=f"{split}/reset", apart=copies).done)
        evaluation = InGraphEvaluation(
            split, tf.group(*begin), logs=values, cardinality=cardinality
        )
        if evaluation.metrics:
            require_objective(self._config.train.objective, evaluation.metrics)
        return evaluation

    def built(
        self, graph: tf.Graph, training: Training | None, evaluation: InGraphEvaluation
    ) -> BuiltGraph:
        """Returns the built graph, with its saver added."""
        program, model = self._program, self._program.model
        step = tf.compat.v1.train.get_global_step()
        variables = {
            name: variable
            for name, variable in self._copy.variables.items()
            if not self._copy.is_local(name)
        }
        variables |= {"global_step": step}
        if training is not None:
            extra = {ROLLBACKS: training.rollbacks, CALLBACKS: training.callback_state}
            variables |= {name: value for name, value in extra.items() if value is not None}
        weights = keras_variables(model)
        model_variables = {name: variables[name] for name in self._weights}
        return BuiltGraph(
            graph=graph,
            variables=variables,
            specs=variable_specs(
                variables,
                {name: self._steps.trainable[name] for name in model_variables},
                policies=self._steps.scaffolds,
                training=training,
                initializers=self._initializers(),
                facts=layer_facts(model),
            ),
            training=training,
            evaluation=evaluation,
            saver=self._saver(variables, training),
            calls=self._errors,
            sizes=program.data.sizes() if isinstance(program.data, Sized) else {},
            notes=tuple(self._steps.notes),
            model=ModelValues(model, self._pairs(variables)),
            layout=partial(weights_layout, model, weights) if weights else None,
            slots=keras_slots(variables, self._optimizer) if training else None,
        )

    def _saver(
        self, variables: Mapping[str, tf.Variable], training: Training | None
    ) -> tf.compat.v1.train.Saver:
        """Returns the saver; without training it may read the averages of the trained variables."""
        config = self._config
        averaged: frozenset[str] = frozenset()
        if training is None and config.train.evaluate_ema:
            names = {id(variable): name for name, variable in self._weights.items()}
            averaged = frozenset(
                names[id(weight)]
                for _, optimizer in optimizers_of(self._program.model)
                for weight, _ in averages_of(optimizer)
            )
        source = training.source if training is not None and config.train.save_input else None
        return checkpoint_saver(config, saved_as(variables, averaged), source)

    def _pairs(
        self, variables: Mapping[str, tf.Variable]
    ) -> dict[str, tuple[tf.Variable, tf.Variable]]:
        eager = {**self._weights, **self._optimizer, **self._metrics}
        known = {**self._copy.variables, **variables}
        return {name: (known[name], eager[name]) for name in eager if name in known}

    def _session_variables(self) -> dict[int, tf.Variable]:
        """Returns the `id` of an eager variable -> its counterpart in the session."""
        eager = {**self._weights, **self._optimizer, **self._metrics}
        held = self._copy.variables
        return {id(variable): held[name] for name, variable in eager.items() if name in held}

    def _initializers(self) -> dict[str, str]:
        """Returns name -> how a variable gets its first value."""
        return {
            **self._first_values,
            **initializers(self._program.model),
            **{name: f"{OF_MODEL} {digest}" for name, digest in self._brought.items()},
        }

    def _zeros(self) -> set[str]:
        """Returns the names of slots that are zero, which the session need not be given."""
        return {
            name
            for name, variable in self._optimizer.items()
            if variable.shape.rank and not tf.math.count_nonzero(variable).numpy()
        }

    def _constant_rates(self) -> set[str]:
        rates = {
            id(rate)
            for _, optimizer in optimizers_of(self._program.model)
            for rate in learning_rates_of(optimizer)
        }
        return {name for name, variable in self._optimizer.items() if id(variable) in rates}

    def _shared_state(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the operation of what an optimizer keeps once, and those of what it trains."""
        known = {**self._weights, **self._optimizer}
        names = {id(variable): name for name, variable in known.items()}
        held = self._copy.variables

        def name_of(variable: tf.Variable) -> str:
            return names.get(id(variable), "")

        for _, optimizer in optimizers_of(self._program.model):
            trained = [name_of(tensorflow_variable(each)) for each in trained_by(optimizer)]
            operations = tuple(held[name].op.name for name in trained if self._trains(name))
            for variable, _ in named_state(optimizer, "", name_of):
                name = name_of(variable)
                owned = any(name.startswith(f"{weight}/") for weight in trained)
                if name in held and not owned and not self._copy.is_local(name):
                    yield held[name].op.name, operations

    def _trains(self, name: str) -> bool:
        return self._steps.trainable.get(name, False) and name not in self._steps.frozen


def _initializer_of(variable: tf.Variable) -> str:
    """Returns the name of an initializer that gives a variable its value; of a random one "Random"."""
    value = np.ravel(variable.numpy())
    if value.dtype.kind not in "biuf" or not value.size or (value != value[0]).any():
        return "Random"
    number = float(value[0])
    return {0.0: "Zeros", 1.0: "Ones"}.get(number, f"Constant({number:.4g})")


def _callback_state() -> tf.Variable:
    """Adds the variable by which checkpoints hold the state of callbacks."""
    return tf.compat.v1.get_variable(CALLBACKS, initializer="", trainable=False)
