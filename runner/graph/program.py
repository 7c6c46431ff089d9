"""The Keras program of a configuration: its model and data, built eagerly as for `fit`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import GIVEN, build_target, name_of
from runner.config.schema import MODEL_SWITCHES, RunConfig
from runner.errors import ConfigError, described_type
from runner.graph.compiling import compilation, compile_model
from runner.graph.contracts import Data, features_of, overrides
from runner.graph.model_values import is_large, same_value
from runner.graph.splits import build_data
from runner.graph.step_errors import described, values_are_unknown
from runner.graph.traces import METRICS
from runner.internals.keras import (
    clear_and_seed,
    layers_of,
    metrics_of,
    restored_names,
    trained_by,
)
from runner.internals.tensorflow import (
    array_of_tensor,
    free,
    give,
    gradients_end_with_graphs,
    restored_seed,
)
from runner.planning.model_variables import keras_variables, tensorflow_variable
from runner.planning.optimizer_state import kind_of, named_state, optimizers_of
from runner.restoration.reading import checksum
from runner.system.user_code import calling, unchanged_random_states

# In place of the name of a slot's variable.
_OWNED = "?"


@contextmanager
def as_in_fit(config: RunConfig) -> Iterator[None]:
    """Lets user code run eagerly under the run's seed and dtype policy.

    A model that was handed over draws in the random state of the process, if it is seeded. Names of
    layers count from the start, so that they are the same in every process. What the block changes
    of the process is put back: names, seeds, policy.
    """
    policy = keras.config.dtype_policy()
    with ExitStack() as stack:
        for unchanged in (unchanged_random_states, restored_names, restored_seed):
            stack.enter_context(unchanged())
        stack.enter_context(gradients_end_with_graphs())
        clear_and_seed(config.seed, seeds_stay=config.model.get("_target_") == GIVEN)
        keras.config.set_dtype_policy(config.model.get("dtype_policy", "float32"))
        stack.callback(keras.config.set_dtype_policy, policy)
        yield


def build_model(config: RunConfig) -> keras.Model:
    """Builds the model of a configuration, eagerly.

    Raises:
      ConfigError: when the target is no Keras model.
    """
    if not config.model:
        raise ConfigError.of(
            "the run has no Keras model",
            "it trains a graph or a function",
            "use hooks in place of callbacks, mode=export to export it, and no `proof`",
        )
    node = {name: value for name, value in config.model.items() if name not in MODEL_SWITCHES}
    # On a GPU the values would be there twice, here and in the session.
    with tf.device("/cpu:0"):
        model = build_target("model", node)
    _require_no_distribution(model)
    if isinstance(model, keras.Layer) and not isinstance(model, keras.Model):
        model = _OfLayer(model)
    if isinstance(model, keras.Model):
        return model
    raise ConfigError.of(
        f"model: {name_of(config.model)} gives no Keras model, but {described_type(model)}",
        "a run trains a keras.Model or another Keras layer",
        "derive it from keras.Model, with a method call(features, training); or build the whole "
        "graph with `graph`",
    )


def _require_no_distribution(model: Any) -> None:
    """Raises a ConfigError where `fit` would train on the devices of a strategy."""
    strategy = getattr(model, "distribute_strategy", tf.distribute.get_strategy())
    with strategy.scope():
        is_distributed = tf.distribute.has_strategy()
    if is_distributed:
        raise ConfigError.of(
            f"model: it is distributed by a {type(strategy).__name__}",
            "a run distributes its steps itself",
            "build the model without it, and set `devices` or `cluster`",
        )


class _OfLayer(keras.Model):
    """A layer as a model."""

    def __init__(self, layer: keras.Layer) -> None:
        super().__init__(name=layer.name)
        self.layer = layer

    def call(self, features: Any, training: bool = False) -> Any:
        arguments = {"training": training} if self.layer._call_has_training_arg else {}
        return self.layer(features, **arguments)


@dataclass
class Program:
    """A Keras model, compiled and built, and its data.

    Attributes:
      config: the run's configuration.
      model: the model.
      data: the data.
      step: the global step outside the session, an int64 scalar, for schedules and policies.
      notes: lines on how the model is compiled.
      compiled: what it is compiled with where the configuration names nothing, see `BuiltGraph`.
    """

    config: RunConfig
    data: Data
    step: tf.Variable
    model: Any = None
    notes: Sequence[str] = ()
    compiled: Mapping[str, Any] = field(default_factory=dict)
    _created: dict[int, tuple[tf.Variable, tf.Tensor]] = field(default_factory=dict)
    _freed: dict[int, tf.Variable] = field(default_factory=dict)

    @cached_property
    def takes_steps(self) -> bool:
        """Whether the model overrides `train_step`."""
        return overrides(self.model, "train_step")

    def build(self, spec: Any) -> None:
        """Creates the variables of a model that has none before its first call.

        Args:
          spec: nested `tf.TypeSpec`s of a training batch.
        """
        model, name = self.model, name_of(self.config.model)
        if all(layer.built for layer in layers_of(model)) and model.built:
            return
        call = f"{name}.train_step was called with {described(spec)}"
        if not self.takes_steps:
            call = f"{name} was called with features {described(features_of(spec))}"

        def step(batch: Any) -> tf.Tensor:
            with values_are_unknown(), calling("model", call):
                if self.takes_steps:
                    model.train_step(batch)
                else:
                    model(features_of(batch))
            return tf.constant(True)

        former = {id(variable) for variable in self.weights().values()}
        with self.recording():
            tf.function(step, autograph=False).get_concrete_function(spec)
        for variable in self.weights().values():
            if id(variable) not in former:  # A Sequential's have values only after the trace.
                self._created.setdefault(id(variable), (variable, variable.read_value()))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the first values of variables that the block creates."""

        def creator(next_creator: Any, **arguments: Any) -> tf.Variable:
            variable = next_creator(**arguments)
            if tf.executing_eagerly():
                # They share their memory until the variable gets another value.
                self._created[id(variable)] = (variable, variable.read_value())
            return variable

        with tf.variable_creator_scope(creator):
            yield

    @contextmanager
    def freeing_zeros(self) -> Iterator[None]:
        """Frees the values of variables that the block creates with zeros, if they are large.

        Slots of an optimizer need memory in the session only: with Adam, 512 of 1,137 MiB where a
        graph for 256 MiB of weights is built.
        """

        def creator(next_creator: Any, **arguments: Any) -> tf.Variable:
            variable = next_creator(**arguments)
            if tf.executing_eagerly() and is_large(variable) and is_zero(variable):
                free(variable)
                self._freed[id(variable)] = variable
            return variable

        with tf.variable_creator_scope(creator):
            yield

    def zero_slots(self, handles: Collection[int]) -> set[str]:
        """Returns the names of the slots that are zeros, and frees them; others have values again.

        Args:
          handles: the `id`s of the handles that steps use: the session has no other slots.
        """
        zeros = {}
        for name, variable in self.optimizer_variables().items():
            freed = self._freed.pop(id(variable), None) is not None
            if id(variable.handle) not in handles:
                if freed:
                    give(variable, tf.zeros(variable.shape, variable.dtype))
            elif freed or (variable.shape.rank and is_zero(variable)):
                zeros[name] = variable
        for variable in zeros.values():
            free(variable)
        return {*zeros}

    def weights(self) -> dict[str, tf.Variable]:
        """Returns name -> variable of the model."""
        return {
            name: tensorflow_variable(variable)
            for name, variable in keras_variables(self.model).items()
        }

    def optimizer_variables(self) -> dict[str, tf.Variable]:
        """Returns name -> variable of the model's optimizers."""
        names = {id(variable): name for name, variable in self.weights().items()}

        def owner(variable: Any) -> str:
            return names.get(id(variable), "")

        state: dict[str, tf.Variable] = {}
        for prefix, optimizer in self._optimizers():
            state.update(
                (name, variable) for variable, name in named_state(optimizer, prefix, owner)
            )
        return state

    def _optimizers(self) -> Iterator[tuple[str, Any]]:
        """Yields the optimizers and what their variables are named after.

        That is the class of the optimizer that Keras's `train_step` uses, and the attribute of any
        other: a part of the model, such as a teacher, may have one of the same class.
        """
        for attribute, optimizer in optimizers_of(self.model):
            is_of_keras = not self.takes_steps and optimizer is self.model.optimizer
            yield kind_of(optimizer) if is_of_keras else attribute, optimizer

    def forget_first_values(self) -> None:
        """Lets go of the values that variables were created with, which use their memory."""
        self._created.clear()

    def shared_state(self) -> dict[str, tuple[str, ...]]:
        """Returns name of what an optimizer keeps once -> names of the weights that it trains."""
        names = {id(variable): name for name, variable in self.weights().items()}
        shared: dict[str, tuple[str, ...]] = {}
        for prefix, optimizer in self._optimizers():
            trained = [
                names[id(tensorflow_variable(variable))]
                for variable in (trained_by(optimizer) if optimizer.built else ())
                if id(tensorflow_variable(variable)) in names
            ]
            for _, name in named_state(optimizer, prefix, lambda variable: _OWNED):
                if not name.startswith(_OWNED):
                    shared[name] = tuple(trained)
        return shared

    def metric_variables(self) -> dict[str, tf.Variable]:
        """Returns name -> variable of the metrics of the model and of its parts."""
        named: dict[str, tf.Variable] = {}
        for metric in self.metrics():
            for variable in metric.variables:
                if not any(variable.value is known for known in named.values()):
                    named[unused_name(f"{METRICS}{metric.name}/{variable.name}", named)] = (
                        variable.value
                    )
        return named

    def metrics(self) -> list[keras.Metric]:
        """Returns the metrics of the model and of its parts."""
        parts = [part for part in layers_of(self.model) if isinstance(part, keras.Model)]
        return [metric for part in parts for metric in metrics_of(part)]

    def brought_along(self) -> dict[str, str]:
        """Returns name -> digest of weights whose values differ from what their initializers give.

        They were loaded or trained where the model was built, or the model was handed in.
        """
        return {
            name: checksum(variable.numpy())
            for name, variable in self.weights().items()
            if not _unchanged(variable, self._created.get(id(variable), (None, None))[1])
        }


def load_program(config: RunConfig, *, compiled: bool = True) -> Program:
    """Builds data and model, and compiles the model; within `as_in_fit`.

    Raises:
      ConfigError: when one of them cannot be built, or does not fit the other keys.
      UserCodeError: when the experiment's code raises an error.
    """
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
    program = Program(config, build_data(config), step)
    with program.recording():
        program.model = build_model(config)
    if compiled:
        program.notes = compile_model(config, program.model, step)
        program.compiled = compilation(config, program.model)
    return program


def unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """Returns a name, with a number where it is taken."""
    numbers = itertools.count(1)
    free = name
    while free in taken:
        free = f"{name}_{next(numbers)}"
    return free


def is_zero(variable: tf.Variable) -> bool:
    """Returns whether all numbers of an eager variable are 0."""
    return not array_of_tensor(variable.read_value()).any()


def _unchanged(variable: tf.Variable, first: tf.Tensor | None) -> bool:
    return first is not None and same_value(variable, first)
