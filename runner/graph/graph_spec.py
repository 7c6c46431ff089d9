"""A graph of one's own in one mode, and the evaluation of such a graph in a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from runner.graph.calls import Calls
from runner.graph.input_pipeline import TrainingInput, needed

_Hooks: TypeAlias = Sequence[tf.compat.v1.train.SessionRunHook]


@dataclass(frozen=True)
class GraphSpec:
    """A graph of one's own in one mode, which the target of `graph` adds to the default graph.

    Attributes:
      loss: a scalar; required to train. In an evaluation its mean over the batches is the metric
        `loss`.
      train_op: an operation or a tensor that trains one step and increments the global step; or a
        function of the session that does, in several `session.run`s. Hooks see none of these:
        `loss` and `metrics` are fetched afterwards, in a run of their own, so that they should be
        read from variables. Required to train.
      metrics: name -> scalar of a training step, recorded with the loss; empty by default.
      evaluation: name -> (value, update_op), as `tf.compat.v1.metrics` returns them: the update ops
        run until the input ends, and once where they read none. Required to evaluate, unless there
        is a `loss`.
      input: what the step reads; checkpoints keep its position. By default none is kept.
      scaffold: as in `tf.compat.v1.train.MonitoredTrainingSession`. Its `init_op` and `init_fn` run
        in a fresh start, before anything is restored; its `saver` replaces the run's.
      hooks: of this mode, after those of the configuration; none by default.
      chief_hooks: hooks of the training that one task of a cluster has; none by default.
      signatures: name -> `SignatureDef` that `mode=export` exports; empty by default.
      example: returns input of `serving_default` -> array, of one example, which MLflow keeps with
        the exported model; None by default.

    Raises:
      TypeError: when a field is of another type, or what is recorded of a training step no scalar.
    """

    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | Callable[[tf.compat.v1.Session], object] | None = None
    metrics: Mapping[str, tf.Tensor] = field(default_factory=dict)
    evaluation: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    input: TrainingInput | None = None
    scaffold: tf.compat.v1.train.Scaffold = field(default_factory=tf.compat.v1.train.Scaffold)
    hooks: _Hooks = ()
    chief_hooks: _Hooks = ()
    signatures: Mapping[str, Any] = field(default_factory=dict)
    example: Callable[[], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.train_op, list | tuple):
            raise TypeError(f"train_op must be one operation: tf.group(*{self.train_op})")
        if isinstance(self.input, tf.data.Dataset):
            raise TypeError("input must be a runner.TrainingInput, given: a tf.data.Dataset")
        given: Mapping[str, Any] = self.evaluation
        for name, pair in given.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"evaluation[{name!r}] must be (value, update_op), given: {pair}")
        scalar = tf.TensorShape([])
        recorded = {"loss": self.loss, **self.metrics} if self.train_op is not None else {}
        for name, value in recorded.items():
            shape = getattr(value, "shape", scalar)
            if isinstance(value, list | tuple) or not scalar.is_compatible_with(shape):
                raise TypeError(f"{name} must be a scalar in training, given: {value}")


@dataclass(frozen=True)
class EvaluationGraph:
    """An evaluation in a graph of its own, for a session of its own.

    Attributes:
      name: `validation` or `test`.
      graph: holds everything but `transfer`.
      values: metric name -> its value over all batches since the session began.
      update: evaluates one batch; it raises OutOfRangeError when the input has ended.
      scaffold: its saver restores the model, its local init prepares the rest.
      hooks: of the evaluation.
      transfer: saves the model for that saver, in the graph of the session that holds it.
      anew: builds it once more, as each evaluation by hooks does, whose `begin` may add operations
        and start counting; None, the default, where the graph is used again.
      once: whether `update` runs once, because it reads nothing that ends; by default not.
      cardinality: as of `Split`.
      calls: explain errors of its operations; None, the default, leaves them as they are.
    """

    name: str
    graph: tf.Graph
    values: Mapping[str, Any]
    update: tf.Operation
    scaffold: tf.compat.v1.train.Scaffold
    hooks: _Hooks
    transfer: tf.compat.v1.train.Saver
    anew: Callable[[], EvaluationGraph] | None = None
    once: bool = False
    cardinality: tf.Tensor | None = None
    calls: Calls | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.values)


def separate_evaluation(
    name: str, spec: GraphSpec, saver: tf.compat.v1.train.Saver
) -> EvaluationGraph:
    """Returns the evaluation of the default graph, `spec`, for a separate session.

    The saver restores its variables, and is the `transfer` of the evaluation.
    """
    metrics = {} if spec.loss is None else {"loss": tf.compat.v1.metrics.mean(spec.loss)}
    metrics |= spec.evaluation
    own = spec.scaffold
    local = local_init_op(own, *([] if spec.input is None else [spec.input.initializer]))
    saver.build()
    return EvaluationGraph(
        name,
        tf.compat.v1.get_default_graph(),
        {
            name: tf.nest.map_structure(tf.convert_to_tensor, value)
            for name, (value, _) in metrics.items()
        },
        tf.group(*tf.nest.flatten([update for _, update in metrics.values()])),
        tf.compat.v1.train.Scaffold(local_init_op=local, saver=saver, copy_from_scaffold=own),
        spec.hooks,
        saver,
    )


def local_init_op(
    own: tf.compat.v1.train.Scaffold | None, *others: tf.Operation
) -> tf.Operation | None:
    """Returns the `local_init_op` of a scaffold for the default graph.

    None stands for TensorFlow's default, which is created after `begin` of the hooks and
    initialises their local variables too. A program's own is grouped with the parts of the default
    that it omits.

    Args:
      own: the scaffold of the program, if any.
      *others: operations to run as well.
    """
    if own is None or own.local_init_op is None:
        for each in others:
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, each)
        return None
    done = needed([own.local_init_op])
    default = [each.initializer for each in tf.compat.v1.local_variables()]
    default += tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    return tf.group(own.local_init_op, *others, *(each for each in default if each not in done))
