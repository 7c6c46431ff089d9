"""The graph of a configuration with a `model`: steps that Keras traces, run by a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.graph import keras_serving
from runner.graph.batch_norm import replicated_norms
from runner.graph.built_graph import BuiltGraph, Features, GraphMaker
from runner.graph.devices import devices_of
from runner.graph.imported_program import ImportedProgram
from runner.graph.input_pipeline import TrainingInput
from runner.graph.keras_steps import KerasSteps
from runner.graph.program import as_in_fit, load_program
from runner.graph.replica import Replica, Replicas
from runner.graph.splits import needs_labels, one_pass, training_batches, weighted_by_class
from runner.graph.step_sums import StepSums
from runner.internals.datasets import dataset_in_graph, reads_generator


class KerasGraph(GraphMaker):
    """The graph of `data`, `model`, `loss`, `metrics` and `optimizer`."""

    def build(self, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
        """Traces the model's steps eagerly, and imports them into a new graph."""
        config = self.config
        replicas = Replicas(devices_of(config.devices), replica)
        with as_in_fit(config):
            program = load_program(config)
            labelled = needs_labels(program.model)
            batches, epochs = None, None
            if train:
                # Tasks that train asynchronously share the batches of a pass.
                batches, epochs = training_batches(
                    config,
                    program.data,
                    labelled=labelled,
                    per_step=replicas.batches * replica.count,
                )
                batches = replica.shard(weighted_by_class(batches, config.class_weight))
            evaluated, cardinality = one_pass(split, program.data, labelled=labelled)
            program.build((batches or evaluated).element_spec)
            sums = StepSums(replicas.count) if train and replicas.count > 1 else None
            # A worker beside parameter servers has metrics of its own, and sees no epoch begin.
            apart = replica.count > 1
            steps = KerasSteps(program, None if apart else epochs, sums)
            # First, because it makes the metrics, which a training step begins by resetting.
            test_trace = steps.test(evaluated.element_spec)
            train_trace = None
            if batches is not None:
                train_trace = steps.train(replicas.spec(batches.element_spec), frees=True)
            elif config.train.evaluate_ema:
                steps.build_averages(evaluated.element_spec)
            if batches is not None and sums is not None:
                steps.notes += replicas.notes(batches.element_spec, sums.bytes)
                steps.notes += replicated_norms(program.model, config.devices)
            imported = ImportedProgram(
                program,
                steps,
                replicas,
                [train_trace, test_trace],
                saves_metrics=epochs is not None,
            )
            with tf.Graph().as_default() as graph, replica.scope(), replicas.first_scope():
                tf.compat.v1.set_random_seed(config.seed)
                training = None
                imported.begin()
                if batches is not None and train_trace is not None:
                    reason = ""
                    if self.rereads:
                        reason = "an error of the data is in their checkpoints"
                    elif reads_generator(batches):
                        reason = "checkpoints cannot hold the position of a generator"
                    source = TrainingInput(
                        dataset_in_graph(batches),
                        prefetch=getattr(program.data, "prefetch", True),
                        replicas=replica.count,
                        epochs=epochs,
                        begin=imported.batches_read(reason) if reason else None,
                    )
                    training = imported.training(source, train_trace)
                evaluation = imported.evaluation(split, evaluated, cardinality, trace=test_trace)
                return imported.built(graph, training, evaluation)

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
