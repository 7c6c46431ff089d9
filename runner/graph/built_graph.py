"""The contract of a built graph, and of the makers that build one from a configuration."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf
from numpy.typing import NDArray

from runner.config.epochs import Epochs
from runner.config.schema import RunConfig
from runner.errors import Problem
from runner.graph.averages import AveragedWeights
from runner.graph.evaluation import Evaluation
from runner.graph.input_pipeline import InputState, TrainingInput
from runner.graph.model_values import ModelValues
from runner.graph.replica import Replica
from runner.planning.optimizer_slots import Slots
from runner.planning.places import WeightsLayout
from runner.planning.variables import VariableSpec


@dataclass(frozen=True)
class Training:
    """The training step.

    Attributes:
      train_op: runs one step and increments the global step.
      step: the global step, an int64 scalar, read after the train op has run.
      values: metric name -> float32 scalar over the step's batches; `loss` is one of them, except
        where a model's own step returns none.
      epoch_values: the same of the epoch so far, as `fit` reports them at its end; by default
        `values`.
      rollbacks: how often the run went back to a checkpoint; None when it cannot.
      input_initializer: starts the training input at its beginning.
      input_seconds: how long the step waits for its input, a float64 scalar.
      input_name: how messages name the training input, e.g. `data.train()`.
      saved_input: what the graph's saver saves of the training input; None when it saves nothing.
      learning_rate: of the step, a float32 scalar; None when `optimizer.learning_rate` sets none.
      learning_rate_scale: multiplies the learning rate; None when nothing can change it.
      averages: moving averages of the weights; None when there are none.
      epochs: where epochs end; None where nothing depends on them.
      callback_state: by which checkpoints hold the state of callbacks, a string; None without any.
      source: the training input; None where the graph is the user's.
      shared_state: name of a variable's operation -> names of the operations of the weights that
        share this variable of an optimizer.
      to_devices: gives the other devices of this task the values of the first one; None where no
        others have variables.
      values_are_cheap: whether any step may compute `values`, as Keras's `fit` does at every step.
    """

    train_op: tf.Operation
    step: tf.Tensor
    values: Mapping[str, tf.Tensor]
    rollbacks: tf.Variable | None
    input_initializer: tf.Operation
    input_seconds: tf.Tensor
    input_name: str
    saved_input: InputState | None
    learning_rate: tf.Tensor | None = None
    learning_rate_scale: tf.Variable | None = None
    epoch_values: Mapping[str, tf.Tensor] = field(default_factory=dict)
    averages: AveragedWeights | None = None
    epochs: Epochs | None = None
    callback_state: tf.Variable | None = None
    source: TrainingInput | None = None
    shared_state: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values_are_cheap: bool = False
    to_devices: tf.Operation | None = None

    @property
    def loss(self) -> tf.Tensor:
        """The value `loss`, or the sum of all values of a step that has no value of that name."""
        return self.values["loss"] if "loss" in self.values else tf.add_n([*self.values.values()])

    def run_step(self, session: tf.compat.v1.train.MonitoredSession) -> None:
        """Takes one training step; the session's hooks see it."""
        session.run(self.train_op)

    def input_ended(self, steps: int) -> Problem:
        """Returns the problem of a training input that ended before the last step, `steps`."""
        return Problem(
            f"{self.input_name} ended before step {steps}",
            "the training data must repeat without end",
            "end its pipeline with .repeat() before .batch(), or count passes over it: "
            "train.epochs=3",
        )


@dataclass(frozen=True)
class BuiltGraph:
    """A complete graph, before it is finalised: the contract that every `GraphMaker` fulfils.

    Attributes:
      graph: the graph.
      variables: name -> global variable, all of them. Variables of Keras go by their paths without
        the name of the root model, others by their names.
      specs: the variables for the planner, in the same order.
      training: the training step; None in a graph that only evaluates.
      evaluation: evaluates a split with the weights of a session of this graph.
      saver: saves and restores all variables and, where that is saved, the training input.
      explaining: surrounds a session and explains errors of the graph's operations.
      sizes: split -> number of examples; empty where the data do not report it.
      notes: lines on what the configuration replaces of a compiled model.
      compiled: what the model is compiled with where the configuration names nothing, by the keys
        that would name it; empty for other graphs.
      model: the Keras model whose steps the graph holds; None for other graphs.
      layout: returns where Keras saves the model's variables; None for a model that is not Keras's.
      slots: the variables of a Keras optimizer; None for any other optimizer.
      scaffold: what a user's graph adds to the start of a session, in a fresh start before
        anything is restored; by default nothing.
      graph_hooks: hooks that come with the graph, for every task that trains.
      chief_hooks: hooks that come with the graph, for the task that saves checkpoints.
      summary_op: the `tf.compat.v1.summary`s to write; None when there are none.
    """

    graph: tf.Graph
    variables: Mapping[str, tf.Variable]
    specs: tuple[VariableSpec, ...]
    training: Training | None
    evaluation: Evaluation
    saver: tf.compat.v1.train.Saver
    explaining: Callable[[], AbstractContextManager[object]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    compiled: Mapping[str, Any] = field(default_factory=dict)
    model: ModelValues | None = None
    layout: Callable[[], WeightsLayout] | None = None
    slots: Slots | None = None
    scaffold: tf.compat.v1.train.Scaffold = field(default_factory=tf.compat.v1.train.Scaffold)
    graph_hooks: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    chief_hooks: Sequence[tf.compat.v1.train.SessionRunHook] = ()
    summary_op: tf.Tensor | None = None


@dataclass(frozen=True)
class ServingGraph:
    """The graph of a model that is served, for a SavedModel.

    Attributes:
      graph: the graph.
      signatures: name -> `SignatureDef`; `serving_default` is one of them.
      restorer: reads a checkpoint.
      saver: writes the variables of the SavedModel.
      main_op: prepares tables and local variables when the SavedModel is loaded.
    """

    graph: tf.Graph
    signatures: Mapping[str, Any]
    restorer: tf.compat.v1.train.Saver
    saver: tf.compat.v1.train.Saver | None
    main_op: tf.Operation


@dataclass(frozen=True)
class PredictionGraph:
    """The graph that predicts, batch by batch.

    Attributes:
      graph: the graph.
      outputs: name -> tensor [batch, ...] of a batch. Evaluating it raises OutOfRangeError at the
        end of the input.
      restorer: reads a checkpoint.
      initializers: to be run one after the other in every session, after the checkpoint is read.
      feeds: what to feed for each batch; by default nothing, without end.
      cardinality: how many batches there are, as `tf.data.Dataset.cardinality`; None where they are
        known to end.
      explaining: surrounds the session and explains errors of the graph's operations.
    """

    graph: tf.Graph
    outputs: Mapping[str, tf.Tensor]
    restorer: tf.compat.v1.train.Saver
    initializers: Sequence[tf.Operation]
    feeds: Iterable[Mapping[Any, Any]] = field(default_factory=partial(itertools.repeat, {}))
    cardinality: tf.Tensor | None = None
    explaining: Callable[[], AbstractContextManager[object]] = nullcontext


# Where the features of predictions come from: a split, or a function that returns their batches.
Features: TypeAlias = str | Callable[[], tf.data.Dataset]


class GraphMaker(ABC):
    """Builds the graphs of a configuration; one class for each key that describes a graph.

    Args:
      config: the validated configuration.
      rereads: whether a session reads the training batches of its former steps again, instead of
        restoring the position. Only graphs of a Keras model do.

    Attributes:
      data_key: the key of the configuration that names the data.
    """

    data_key = "data"

    def __init__(self, config: RunConfig, *, rereads: bool = False) -> None:
        self.config, self.rereads = config, rereads

    @abstractmethod
    def build(self, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
        """Builds the graph in which a run trains and evaluates: see `build.build_graph`."""

    @abstractmethod
    def save(self, checkpoint: str, folder: Path) -> None:
        """Writes the SavedModel that `mode=export` exports, with the values of a checkpoint.

        Raises:
          ConfigError: when the checkpoint does not fit, or there is nothing to serve.
        """

    @abstractmethod
    def predictions(
        self, features: Features, checkpoint: str
    ) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yields the predictions of batches of features, by name, with a checkpoint's values.

        A function of features returns their batches, which may have labels.

        Raises:
          ConfigError: when there are no such features, or no predictions.
        """

    @abstractmethod
    def example(self) -> Mapping[str, Any]:
        """Returns input of the served model -> array of one example; may be empty."""
