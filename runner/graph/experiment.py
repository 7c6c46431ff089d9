"""The contracts of an experiment, and the graph that is built from it.

`Data`, `Model` and `PerExample` are what a configuration's `_target_`s must offer; losses and
metrics may also be Keras's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from runner.graph.calls import Calls
from runner.graph.graph_spec import EvaluationGraph, GraphSpec
from runner.graph.input_pipeline import InputState
from runner.graph.optimization import AveragedWeights
from runner.restoration.variables import VariableSpec
from runner.restoration.weights_layout import Slots, WeightsLayout


@runtime_checkable
class Data(Protocol):
    """The data of an experiment: three pipelines of batches.

    A batch is `(features, labels)` or, as for `keras.Model.fit`, `(features, labels, weights)` with
    the weights of the examples. Each is a tensor, or a nested structure of tensors, whose first
    dimension is the batch.

    The training batches are prefetched, unless the data has an attribute `prefetch` that is False.
    `tf.data` tunes the parallelism of training as ever, that of the other splits, which begin anew
    with each evaluation, only where their `options.autotune.enabled` is set.
    """

    def train(self) -> tf.data.Dataset:
        """Returns batches without end, in an order that the seed decides."""

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation split."""

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test split."""


@runtime_checkable
class Sized(Protocol):
    """Data that reports its split sizes, which are recorded with the run.

    That of `train` also says what one pass over endless training data is, for
    `evaluate.split=train`.
    """

    def sizes(self) -> Mapping[str, int]:
        """Returns split -> number of examples."""


class Model(Protocol):
    """The model of an experiment, normally a `keras.Model`.

    The runner calls it through `tf.function` inside the graph, so that batch-norm statistics and
    random state are updated; a plain call in a graph drops those updates.

    What a Keras model says of its own counts: `add_loss` and regularisers always; where the
    configuration names no loss or no metrics, those of `compile`, of an overridden `compute_loss`
    or `compute_metrics`, and metrics that it keeps. An overridden `train_step` or `test_step` is
    refused: the runner makes the step itself. Pretrained values come through scaffolds, not from
    the model's constructor.
    """

    def __call__(self, features: Any, training: bool) -> Any:
        """Returns the outputs for a batch of features."""


class PerExample(Protocol):
    """A loss or a metric, for example a function of `keras.losses`, with `_partial_: true`.

    Classes of `keras.losses` and `keras.metrics` are used as `keras.Model.fit` and `evaluate` use
    them: a metric's state begins anew with each pass, and a step of training reports the metric of
    its own batch. `metrics` leave sample weights out, `weighted_metrics` use them.
    """

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns values whose first dimension is the batch; the runner averages over all."""


@dataclass(frozen=True)
class Split:
    """One pass over a split of the data, in the same graph and session as training.

    Attributes:
      name: `train`, `validation` or `test`.
      initializer: starts the pass anew.
      sums: metric name -> sum over the batch's values, a float64 scalar.
      counts: metric name -> how many values were summed, or the sum of their weights; a scalar.
      results: metric name -> value of all batches since the initializer, a float32 scalar.
      cardinality: how many batches a pass has, an int64 scalar, as `tf.data.Dataset.cardinality`;
        None where a pass is known to end.
    """

    name: str
    initializer: tf.Operation
    sums: Mapping[str, tf.Tensor]
    counts: Mapping[str, tf.Tensor]
    results: Mapping[str, tf.Tensor] = field(default_factory=dict)
    cardinality: tf.Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics, `loss` first."""
        return (*self.sums, *self.results)


@dataclass(frozen=True)
class Training:
    """The training step.

    Attributes:
      train_op: runs one step and increments the global step.
      step: the global step, an int64 scalar, read after the train op has run.
      values: metric name -> float32 scalar over the step's batches; `loss` is one of them.
      rollbacks: how often the run went back to a checkpoint; None when it cannot.
      input_initializer: starts the training input at its beginning.
      input_seconds: how long the step waits for its input, a float64 scalar.
      input_state: what a checkpoint keeps of the training input.
      input_is_saved: whether the graph's saver keeps the position in the training input.
      learning_rate: of the step, a float32 scalar; None when the optimizer's config has none.
      learning_rate_scale: multiplies the learning rate; None when nothing can change it.
      averages: moving averages of the weights; None when there are none.
      shared_state: what an optimizer keeps once for several variables -> these; operations' names.
      state_names: operation's name of a variable of a Keras optimizer -> what it would be called by
        one of TensorFlow's, see `runner.graph.keras_optimizer`.
    """

    train_op: tf.Operation
    step: tf.Tensor
    values: Mapping[str, tf.Tensor]
    rollbacks: tf.Variable | None
    input_initializer: tf.Operation
    input_seconds: tf.Tensor
    input_state: InputState
    input_is_saved: bool
    learning_rate: tf.Tensor | None = None
    learning_rate_scale: tf.Variable | None = None
    averages: AveragedWeights | None = None
    shared_state: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltGraph:
    """A complete graph, before it is finalised.

    Attributes:
      graph: the graph.
      variables: name -> global variable, every one. Names are Keras paths without the root model's
        own name, and variable names for what is not Keras's.
      specs: what the planner knows of them, in the same order.
      training: the training step; None in a graph that only evaluates.
      split: the pass over the split that is evaluated; in a graph of its own beside a graph of
        one's own.
      hooks: the hooks of the configuration by name, in its order; None for one that refers to the
        run, which is built once that exists.
      saver: saves and restores all variables and, where that is saved, the training input.
      sizes: split -> number of examples; empty where the data does not report it.
      calls: the calls of the experiment's own code in it.
      own: what the target of `graph` returned; None for a graph that the runner built.
      notes: what the configuration replaces of a compiled model's own, a line each.
      layout: returns where Keras saves the model's variables; None for a model that is not Keras's.
      slots: what a Keras optimizer of all variables keeps; None for any other.
    """

    graph: tf.Graph
    variables: Mapping[str, tf.Variable]
    specs: tuple[VariableSpec, ...]
    training: Training | None
    split: Split | EvaluationGraph
    hooks: Mapping[str, tf.compat.v1.train.SessionRunHook | None]
    saver: tf.compat.v1.train.Saver
    sizes: Mapping[str, int]
    calls: Calls
    notes: tuple[str, ...] = ()
    own: GraphSpec | None = None
    layout: Callable[[], WeightsLayout] | None = None
    slots: Slots | None = None
