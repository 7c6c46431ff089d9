"""The graph of a Keras model that overrides `train_step` or `test_step`.

The steps are called as `keras.Model.fit` and `evaluate` call them, each in one `tf.function` of the
graph: the model differentiates, and its optimizers apply. What they return are the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from runner.config.cluster_spec import is_cluster
from runner.config.composition import default_optimizer
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, UserCodeError
from runner.graph.built_graph import Training
from runner.graph.devices import Devices
from runner.graph.epochs import epoch_metrics
from runner.graph.evaluation import InGraphEvaluation
from runner.graph.experiment import STEPS, overrides
from runner.graph.input_pipeline import TrainingInput
from runner.graph.keras_optimizer import named_state, optimizers_of
from runner.graph.objective import ignored_settings
from runner.graph.training_step import rollback_count
from runner.internals.keras import layers_of, metrics_of, slots_of
from runner.restoration.model_variables import tensorflow_variable
from runner.system.user_code import calling

# In the messages of `tensor.numpy()`, `float(tensor)`, `if tensor:`, and the same of variables.
_READS_A_VALUE = ("symbolic", "SymbolicTensor", "ResourceVariable", "eager execution is enabled")


class ModelSteps:
    """Calls the steps of a model in the default graph.

    Args:
      config: the run's configuration.
      model: a Keras model that overrides a step.
      devices: the devices that train it.

    Raises:
      ConfigError: when the configuration asks for what only the runner's own step does.
    """

    def __init__(self, config: RunConfig, model: keras.Model, devices: Devices) -> None:
        problems = list(_unused_keys(config, model))
        if problems:
            raise ConfigError(*problems)
        self._config, self._model, self._evaluates = config, model, False
        self._devices = devices
        self._global_step = tf.compat.v1.train.get_or_create_global_step()

    def _can_evaluate(self, batches: tf.data.Dataset) -> bool:
        """Whether the model has a `test_step`, or a loss and labels for Keras's."""
        model, element = self._model, batches.element_spec
        labelled = isinstance(element, tuple) and len(element) > 1
        has_loss = model.compiled and model.loss is not None and labelled
        return has_loss or overrides(model, "test_step") or overrides(model, "compute_loss")

    def train(self, source: TrainingInput) -> Training:
        """Adds the training step; it creates variables that the model creates when it is called."""
        batch, waited = self._devices.next_batch(source)
        with self._devices.dividing_calls():
            values, ran = self._call("train_step", batch)
        # Kept over steps, metrics would depend on when the run began. Callbacks see them kept over
        # an epoch, as in `fit`, and checkpoints then hold them.
        if not values:
            raise ConfigError.of(
                f"{self._named('train_step')} returns no metrics",
                "a run records them, and stops where they are NaN",
                'return them by name, such as {"loss": loss}',
            )
        epoch = None
        if self._config.callbacks:
            metrics = [variable.value for variable in self._metrics_variables()]
            epoch = epoch_metrics(values, self.reset_metrics(), metrics)
        with tf.control_dependencies([ran]):
            after = [] if epoch else [self.reset_metrics()]
            trained = tf.group(*after, self._global_step.assign_add(1))
        with tf.control_dependencies([trained]):
            step = tf.identity(self._global_step.read_value())
        return Training(
            train_op=trained,
            step=step,
            values=values,
            rollbacks=rollback_count(self._config),
            epoch_length=source.epoch_length,
            epoch=epoch,
            input_initializer=source.initializer,
            input_seconds=waited,
            input_name="data.train()",
            saved_input=source.state if self._config.train.save_input else None,
            shared_state=dict(self._counters()),
            state_names=dict(self._state_names()),
            values_are_cheap=True,
        )

    def evaluation(
        self, split: str, batches: tf.data.Dataset, cardinality: tf.Tensor | None
    ) -> InGraphEvaluation:
        """Adds the evaluation of a split; it has no metrics where the model cannot evaluate."""
        with tf.name_scope(split):
            iterator = tf.compat.v1.data.make_initializable_iterator(batches)
            values: dict[str, tf.Tensor] = {}
            self._evaluates = self._can_evaluate(batches)
            if self._evaluates:
                values, _ = self._call("test_step", iterator.get_next())
            reset = self.reset_metrics()
        return InGraphEvaluation(
            split,
            tf.group(iterator.initializer, reset),
            sums={},
            counts={},
            cardinality=batches.cardinality() if cardinality is None else cardinality,
            logs=values,
            reset=reset,  # For the next training step.
        )

    def reset_metrics(self) -> tf.Operation:
        """Returns an operation that resets the metrics which the model tracks."""

        def reset() -> tf.Tensor:
            self._model.reset_metrics()
            return tf.constant(True)

        return tf.function(reset, autograph=False)().op

    def create_variables(self, source: TrainingInput) -> None:
        """Calls the training step once in the graph, without running it."""
        self._call("train_step", source.next()[0])

    def notes(self) -> list[str]:
        """Returns lines on the settings that the model makes instead of the configuration."""
        steps = " and ".join(step for step in STEPS if overrides(self._model, step))
        notes = [
            f"steps: {type(self._model).__name__} has a {steps} of its own, with its optimizers"
        ]
        if self._model.compiled:
            notes += ignored_settings(self._model)
        if not self._evaluates:
            notes.append("evaluation: none, the model has neither a test_step nor a loss of labels")
        return notes

    def keep_out_of_checkpoints(self, *, trains: bool) -> None:
        """Keeps out of checkpoints what a session initialises for itself.

        That is the state of metrics, and of optimizers where nothing trains.
        """
        graph = tf.compat.v1.get_default_graph()
        apart = {variable.value.ref() for variable in self._metrics_variables()}
        if not trains:
            apart |= self.optimizer_variables()
        variables = graph.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        for variable in list(variables):
            if variable.ref() in apart:
                variables[:] = [other for other in variables if other is not variable]
                graph.add_to_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES, variable)

    def _metrics_variables(self) -> Iterator[keras.Variable]:
        for part in (self._model, *layers_of(self._model)):
            for metric in metrics_of(part) if isinstance(part, keras.Model) else ():
                yield from metric.variables

    def optimizer_variables(self) -> set[Any]:
        """Returns the references of the variables of all optimizers of the model."""
        return {
            variable.value.ref()
            for _, optimizer in optimizers_of(self._model)
            for variable in optimizer.variables
        }

    def _call(self, method: str, batch: Any) -> tuple[dict[str, tf.Tensor], tf.Operation]:
        """Returns the scalars that a step returns, by name, and the operation that takes it."""
        named = self._named(method)

        def step(data: Any) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            with _values_are_unknown(), calling("model", f"{named} was called"):
                logs = getattr(self._model, method)(data)
            return dict(_scalars(logs, named)), tf.constant(True)

        values, ran = tf.function(step, autograph=False)(batch)
        return values, ran.op

    def _named(self, method: str) -> str:
        return f"{self._config.model['_target_']}.{method}"

    def _state_names(self) -> Iterator[tuple[str, str]]:
        """Yields the operation of a variable of an optimizer, and its name in checkpoints.

        Keras's names hold counters of the process. The model's attribute for the optimizer is what
        stays; slots follow the variable that they belong to.
        """
        for attribute, optimizer in optimizers_of(self._model):
            for variable, name in named_state(optimizer, attribute, _operation_name):
                yield variable.value.op.name, name

    def _counters(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the operation of an optimizer's counter, and those of the variables it trains."""
        for _, optimizer in optimizers_of(self._model):
            if optimizer.built:
                trained = dict.fromkeys(
                    _operation_name(slot.trained) for slot in slots_of(optimizer)
                )
                yield optimizer.iterations.value.op.name, tuple(trained)


@contextmanager
def _values_are_unknown() -> Iterator[None]:
    """Adds cause and remedy to the error of a step that reads a value while it is traced."""
    try:
        yield
    except UserCodeError as error:
        if not any(sign in str(error) for sign in _READS_A_VALUE):
            raise
        problem = replace(
            error.problems[0],
            cause="the step is traced once into a graph, which has no values yet to read in Python",
            remedy="compute it with operations of keras.ops or TensorFlow; or, for a loop of your "
            "own that runs eagerly, start the model by runner.warm_start(model, scaffolds)",
        )
        raise UserCodeError(problem, error.details) from error.__cause__


def _operation_name(variable: Any) -> str:
    name: str = tensorflow_variable(variable).op.name
    return name


def _scalars(logs: Any, step: str) -> Iterator[tuple[str, tf.Tensor]]:
    """Yields what a step returns, as Keras logs it: `{"loss": 0.5}`, or a mapping of mappings."""
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _scalars(value, step)
            continue
        try:
            tensor = tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            tensor = None
        if tensor is None or tensor.dtype == tf.string:
            raise ConfigError.of(
                f"{step} returns {name!r}, which is not a number",
                f"it is of type {type(value).__name__}",
                "return numbers and tensors, and of a metric its result()",
            )
        if tensor.shape.rank == 0:
            yield name, tf.cast(tensor, tf.float32)


def _unused_keys(config: RunConfig, model: keras.Model) -> Iterator[Problem]:
    """Yields a problem for each key without effect on a model that overrides its steps."""
    train = config.train
    unused = {
        "loss": config.loss is not None,
        "metrics": bool(config.metrics or config.weighted_metrics),
        "class_weight": bool(config.class_weight),
        # Every configuration is composed with the default.
        "optimizer": bool(config.optimizer) and config.optimizer != default_optimizer(),
        "cluster": is_cluster(config.cluster),
        "train.accumulate": train.accumulate > 1,
        "train.clip": any(vars(train.clip).values()),
        "train.ema_decay": train.ema_decay is not None,
        **{
            f"scaffolds.{name}.{key}": True
            for name, scaffold in config.scaffolds.items()
            for key, is_set in (
                ("freeze_until_step", bool(scaffold.freeze_until_step)),
                ("learning_rate_multiplier", scaffold.learning_rate_multiplier != 1),
            )
            if is_set
        },
    }
    name = type(model).__name__
    steps = " and ".join(f"{name}.{step}" for step in STEPS if overrides(model, step))
    for key, is_set in unused.items():
        if is_set:
            yield Problem(
                f"{key} is set, and the model has {steps}",
                "the model computes its loss, metrics and update itself",
                f"delete {key}, and compile the model with what it stands for",
            )
