"""Describes the graph that a user's program builds for one mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from runner.graph.input_pipeline import TrainingInput
from runner.session.fetches import operations_for

_Hooks: TypeAlias = Sequence[tf.compat.v1.train.SessionRunHook]


@dataclass(frozen=True)
class GraphSpec:
    """A user's graph in one mode, which the target of `graph` adds to the default graph.

    Attributes:
      loss: a scalar; required to train. In an evaluation its mean over the batches is the metric
        `loss`.
      train_op: an operation or a tensor that trains one step and increments the global step; or a
        function of the session that does, in several `session.run`s. Hooks see none of these, but
        a later run that fetches `loss` and `metrics`: keep them in variables. Required to train.
      metrics: name -> scalar of a training step, recorded with the loss; empty by default.
      evaluation: name -> (value, update_op), as `tf.compat.v1.metrics` returns them: the update ops
        run until the input ends, and once without an input. Required to evaluate, unless there is a
        `loss`.
      input: the input of the step, whose position checkpoints keep; None by default.
      scaffold: as in `tf.compat.v1.train.MonitoredTrainingSession`. Its `init_op` and `init_fn` run
        in a fresh start, before anything is restored; its `saver` replaces the run's.
      hooks: hooks of this mode, after the configuration's; none by default.
      chief_hooks: hooks of the training that one task of a cluster has; none by default.
      signatures: name -> `SignatureDef`, for `mode=export`; empty by default.
      example: returns one example, input of `serving_default` -> array, which MLflow keeps with the
        exported model; None by default.

    Raises:
      TypeError: when a field has another type, or the loss or a metric of training is no scalar.
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
        pairs: Mapping[str, Any] = self.evaluation
        for name, pair in pairs.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"evaluation[{name!r}] must be (value, update_op), given: {pair}")
        scalar = tf.TensorShape([])
        recorded = {"loss": self.loss, **self.metrics} if self.train_op is not None else {}
        for name, value in recorded.items():
            shape = getattr(value, "shape", scalar)
            if isinstance(value, list | tuple) or not scalar.is_compatible_with(shape):
                raise TypeError(f"{name} must be a scalar in training, given: {value}")


def local_init_op(
    scaffold: tf.compat.v1.train.Scaffold, *others: tf.Operation
) -> tf.Operation | None:
    """Returns the `local_init_op` of a session, for the default graph.

    None stands for TensorFlow's default, which is created after `begin` of the hooks and
    initialises their local variables too. The `local_init_op` of a user's scaffold is grouped with
    the parts of the default that it omits.

    Args:
      scaffold: the user's scaffold.
      *others: operations to run as well.
    """
    if scaffold.local_init_op is None:
        for operation in others:
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, operation)
        return None
    done = operations_for([scaffold.local_init_op])
    default = [variable.initializer for variable in tf.compat.v1.local_variables()]
    default += tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    missing = [operation for operation in default if operation not in done]
    return tf.group(scaffold.local_init_op, *others, *missing)
