"""A Keras program, imported into a session's graph: its training step, evaluation, variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from runner.config.epochs import Epochs
from runner.config.objective import require_objective
from runner.config.schedule import NEVER
from runner.config.training_schema import OBJECTIVE
from runner.graph.averages import AveragedWeights
from runner.graph.built_graph import BuiltGraph, Training
from runner.graph.captured import made_before_restoring
from runner.graph.contracts import Sized
from runner.graph.evaluation import InGraphEvaluation
from runner.graph.input_pipeline import TrainingInput, without_autotuning
from runner.graph.keras_steps import SCALE, KerasSteps
from runner.graph.model_values import OUTSIDE, ModelValues, StoredValues
from runner.graph.program import Program, unused_name
from runner.graph.replica import Replicas
from runner.graph.session_variables import (
    ROLLBACKS,
    checkpoint_saver,
    initializer_of,
    rollback_count,
    saved_as,
    variable_specs,
)
from runner.graph.step_errors import StepErrors
from runner.graph.traces import Imported, SessionCopy, Trace
from runner.internals.datasets import dataset_in_graph
from runner.internals.keras import layers_of
from runner.planning.model_variables import initializers, keras_variables, layer_facts
from runner.planning.optimizer_slots import keras_slots
from runner.planning.optimizer_state import averages_of, learning_rates_of, optimizers_of
from runner.planning.weights_layout import weights_layout
from runner.runs.provenance import OF_MODEL

CALLBACKS = "callbacks"
"""The variable by which checkpoints hold the state of callbacks."""


class ImportedProgram:
    """A program's steps in the default graph.

    Args:
      program: the program.
      steps: traces its steps.
      replicas: the replicas of the training step.
      traces: the traces that the graph will hold; None for those that it lacks.
      saves_metrics: whether checkpoints hold the metrics, which add up over several steps.
    """

    def __init__(
        self,
        program: Program,
        steps: KerasSteps,
        replicas: Replicas,
        traces: Collection[Trace | None],
        *,
        saves_metrics: bool,
    ) -> None:
        self._program, self._steps, self._config = program, steps, program.config
        self._replicas = replicas
        self._metrics = program.metric_variables()
        self._reset = steps.reset()
        self._weights = program.weights()
        self._optimizer = program.optimizer_variables()
        self._eager = {**self._weights, **self._optimizer, **self._metrics}
        named = {**self._eager, **steps.state()}
        for trace in traces:
            known = {id(variable) for variable in named.values()} | {id(program.step)}
            for variable in trace.variables if trace else ():
                if id(variable) not in known:
                    # Variables of one layer may share a name, as the states of an LSTM do.
                    name = unused_name(OUTSIDE + variable.name.partition(":")[0], named)
                    named[name] = self._eager[name] = variable
        local = set() if saves_metrics else set(self._metrics)
        if not self._config.callbacks:
            local |= self._constant_rates()
        used = {id(captured) for trace in traces if trace for captured, _ in trace.captured}
        zeros = program.zero_slots(used)
        self._stored = StoredValues()
        self._new_copy = partial(
            SessionCopy,
            named,
            layers_of(program.model),
            zeros=zeros,
            local=local,
            local_scope=replicas.replica.local_scope,
            stored=self._stored,
        )
        self._copy = self._new_copy(replica=replicas.here.start)
        self._shared = program.shared_state()
        self._initializers = {
            **dict.fromkeys(zeros, "Zeros"),
            **{name: initializer_of(named[name]) for name in named.keys() - zeros},
            **initializers(program.model),
            **{name: f"{OF_MODEL} {digest}" for name, digest in program.brought_along().items()},
        }
        program.forget_first_values()
        restored = {
            id(self._weights[name])
            for name, scaffold in steps.scaffolds.items()
            if scaffold.checkpoint is not None and name in self._weights
        }
        steps.notes += made_before_restoring(layers_of(program.model), used, restored)
        self._errors = StepErrors()

    def begin(self) -> None:
        """Adds the global step and the model's weights, in the order in which Keras saves them."""
        step = tf.compat.v1.train.get_or_create_global_step()
        self._copy.bind(self._program.step, step)
        for name in self._weights:
            self._copy.variable(name)

    def batches_read(self, reason: str) -> tf.Tensor | None:
        """Returns how many batches the steps so far have read, and notes that they are read again.

        It is None where a resumed run begins with the first batch: without `train.save_input`, and
        in several tasks, which deal the batches out again.
        """
        train, replica = self._config.train, self._replicas.replica
        if not train.save_input or replica.count > 1 or replica.tasks > 1:
            return None
        self._steps.notes.append(
            f"input: a resumed run reads the batches of its former steps again, as {reason}"
        )
        step = tf.compat.v1.train.get_global_step()
        return step.read_value() * train.accumulate * self._replicas.batches

    def training(self, source: TrainingInput, trace: Trace) -> Training:
        """Adds the training step."""
        config = self._config
        imported, waited = self._step(source, trace)
        copies = [copy for copy, _ in imported]
        done = tf.group(*[step.done for _, step in imported])
        values, rate, of_epoch = imported[0][1].outputs
        if len(imported) > 1:
            # A step without one of its replicas would wait for it.
            with tf.control_dependencies([done]):
                values = {name: tf.identity(value) for name, value in values.items()}
        step = tf.compat.v1.train.get_global_step()
        with tf.control_dependencies([done]):
            counted = [step.assign_add(1, read_value=False)]
            counted += [copy.step.assign_add(1, read_value=False) for copy in copies[1:]]
            train_op = tf.group(*counted)
        if source.epochs is not None and source.epochs.meets_end:
            before = [train_op, *values.values(), *(of_epoch or {}).values()]
            train_op = self._end_of_pass(source.epochs, trace, before)
        with tf.control_dependencies([train_op]):
            after = tf.identity(step.read_value())
        averages = self._averages()
        return Training(
            train_op=train_op,
            step=after,
            values=values,
            epoch_values=of_epoch or values,
            rollbacks=rollback_count(config),
            input_initializer=source.initializer,
            input_seconds=tf.add_n(waited),
            input_name="data.train()",
            saved_input=source.state if config.train.save_input and source.is_saved else None,
            learning_rate=rate,
            learning_rate_scale=self._copy.variables.get(SCALE),
            averages=averages,
            epochs=source.epochs,
            callback_state=tf.compat.v1.get_variable(CALLBACKS, initializer="", trainable=False)
            if config.callbacks
            else None,
            shared_state=self._shared_state(),
            values_are_cheap=True,
            source=source,
            to_devices=tf.group(
                *[initializer for copy in copies[1:] for initializer in copy.initializers()]
            ),
        )

    def _end_of_pass(self, epochs: Epochs, trace: Trace, before: Sequence[Any]) -> tf.Operation:
        """Adds the step by which `fit` meets the end of data of unknown length."""
        step = tf.compat.v1.train.get_global_step()
        metrics = self._metrics.values()
        with tf.control_dependencies(before), tf.name_scope("end_of_pass"):
            ends = tf.equal(step.read_value() % (epochs.of_pass or epochs.length), 0)
            count = self._config.train.epochs
            if count is not None and epochs.done(epochs.steps(count)) > count:
                # The epoch that would meet the end after the last step is not trained any more.
                ends &= tf.not_equal(step.read_value(), epochs.steps(count))
            return tf.cond(
                ends,
                lambda: self._copy.add_without_batch(trace, metrics),
                lambda: tf.constant(False),
            ).op

    def _step(
        self, source: TrainingInput, trace: Trace
    ) -> tuple[list[tuple[SessionCopy, Imported]], list[tf.Tensor]]:
        """Adds the step of every replica of this task.

        Returns the copies and their steps, and how long the step waits for each batch.
        """
        replicas, waited = self._replicas, list[tf.Tensor]()
        parts: list[list[tuple[Any, tf.Tensor]]] = []
        for _ in range(self._config.train.accumulate):
            batches = []
            for _ in range(replicas.batches):
                with tf.control_dependencies(waited[-1:]):
                    batch, seconds = source.next()
                batches.append(batch)
                waited.append(seconds)
            parts.append(
                [(batches[0], None)] if replicas.count == 1 else [*replicas.parts(batches)]
            )
        imported: list[tuple[SessionCopy, Imported]] = []
        for index, shares in zip(replicas.here, zip(*parts, strict=True), strict=True):
            arguments: list[Any] = [[part for part, _ in shares]]
            if replicas.count > 1:
                arguments += [[share for _, share in shares], tf.constant(index, tf.int32)]
            copy, name = self._copy, "train"
            with replicas.scope(index):
                if imported:
                    copy = self._new_copy(replica=index, first=self._copy)
                    copy.count_steps(self._program.step, tf.compat.v1.train.get_global_step())
                    name = f"train/replica_{index}"
                step = copy.add(trace, arguments, name=name)
            self._errors.add(step, trace)
            imported.append((copy, step))
        return imported, waited

    def evaluation(
        self, split: str, batches: tf.data.Dataset, cardinality: int | None, *, trace: Trace | None
    ) -> InGraphEvaluation:
        """Adds the evaluation of a split, with metrics apart from the training's.

        What the metrics never reset is shared, as in `fit`.
        """
        values: dict[str, tf.Tensor] = {}
        with tf.name_scope(split):
            dataset = without_autotuning(dataset_in_graph(batches))
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            batch = iterator.get_next()
        begin = [iterator.initializer]
        if trace is not None:
            reset = {id(captured) for captured, _ in self._reset.captured}
            copies = self._copy.copies(
                name for name, variable in self._metrics.items() if id(variable.handle) in reset
            )
            leaves = tf.nest.flatten(batch, expand_composites=True)
            imported = self._copy.add(trace, batch, name=split, apart=copies, after=leaves)
            self._errors.add(imported, trace)
            with tf.control_dependencies([imported.done]):
                values = tf.nest.map_structure(tf.identity, imported.outputs)
            begin.append(self._copy.add(self._reset, name=f"{split}/reset", apart=copies).done)
        evaluation = InGraphEvaluation(
            split, tf.group(*begin), logs=values, cardinality=cardinality
        )
        if evaluation.metrics:
            if self._config.train.evaluate_every != NEVER:
                evaluation.require_data()
            objective = self._config.train.objective
            if objective != OBJECTIVE:
                require_objective(objective, evaluation.metrics)
            elif "loss" not in evaluation.metrics:
                self._steps.notes.append(
                    f"objective: validation/{evaluation.metrics[0]}, as there is no loss"
                )
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
        state = [name for name in self._optimizer if name in variables]
        shapes = {name: tuple(variables[name].shape.as_list()) for name in state}
        return BuiltGraph(
            graph=graph,
            variables=variables,
            specs=variable_specs(
                variables,
                {name: self._steps.trainable[name] for name in model_variables},
                policies=self._steps.scaffolds,
                training=training,
                initializers=self._initializers,
                facts=layer_facts(model),
            ),
            training=training,
            evaluation=evaluation,
            saver=self._saver(variables, training),
            explaining=self._errors.explaining,
            sizes=program.data.sizes() if isinstance(program.data, Sized) else {},
            notes=tuple(self._steps.notes),
            compiled=program.compiled,
            model=ModelValues(model, self._pairs(variables), self._stored),
            layout=partial(weights_layout, model, weights) if weights else None,
            slots=keras_slots(shapes) if training else None,
        )

    def _saver(
        self, variables: Mapping[str, tf.Variable], training: Training | None
    ) -> tf.compat.v1.train.Saver:
        """Returns the saver; without training it may read the averages of the trained variables."""
        config = self._config
        averaged: frozenset[str] = frozenset()
        if training is None and config.train.evaluates_averages:
            names = {id(variable): name for name, variable in self._weights.items()}
            averaged = frozenset(
                names[id(weight)]
                for _, optimizer in optimizers_of(self._program.model)
                for weight, _ in averages_of(optimizer)
            )
        is_saved = training is not None and training.saved_input is not None
        source = training.source if training is not None and is_saved else None
        return checkpoint_saver(config, saved_as(variables, averaged), source)

    def _pairs(
        self, variables: Mapping[str, tf.Variable]
    ) -> dict[str, tuple[tf.Variable, tf.Variable]]:
        known = {**self._copy.variables, **variables}
        return {
            name: (known[name], variable) for name, variable in self._eager.items() if name in known
        }

    def _averages(self) -> AveragedWeights | None:
        """Returns the averages of all optimizers; at the end `fit` knows of one optimizer only."""
        in_session, model = self._session_variables(), self._program.model

        def pairs(optimizer: Any) -> list[tuple[tf.Variable, tf.Variable]]:
            return [
                (in_session[id(weight)], in_session[id(average)])
                for weight, average in averages_of(optimizer)
            ]

        averaged = [pair for _, optimizer in optimizers_of(model) for pair in pairs(optimizer)]
        ends = self._config.train.ends_with_averages and model.optimizer is not None
        final = pairs(model.optimizer) if averaged and ends else []
        return AveragedWeights(averaged, final) if averaged else None

    def _session_variables(self) -> dict[int, tf.Variable]:
        """Returns the `id` of an eager variable -> its counterpart in the session."""
        held = self._copy.variables
        return {id(variable): held[name] for name, variable in self._eager.items() if name in held}

    def _constant_rates(self) -> set[str]:
        rates = {
            id(rate)
            for _, optimizer in optimizers_of(self._program.model)
            for rate in learning_rates_of(optimizer)
        }
        return {name for name, variable in self._optimizer.items() if id(variable) in rates}

    def _shared_state(self) -> dict[str, tuple[str, ...]]:
        """Returns an optimizer's counter -> the weights that it trains, by their operations."""
        held = self._copy.variables
        return {
            held[name].op.name: tuple(held[weight].op.name for weight in weights)
            for name, weights in self._shared.items()
            if name in held and not self._copy.is_local(name)
        }
