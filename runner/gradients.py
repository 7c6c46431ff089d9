"""Gradients that are averaged over several batches, and clipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config import ClipConfig

# As `tf.compat.v1.train.Optimizer` computes and applies them; None where the loss does not depend
# on the variable.
Gradients: TypeAlias = list[tuple[Any, tf.Variable]]
# Metric name -> mean over a batch, the gradients, and the seconds waited for the batch.
Batch: TypeAlias = tuple[dict[str, tf.Tensor], Gradients, tf.Tensor]


def clip(gradients: Gradients, bounds: ClipConfig) -> Gradients:
    """Returns the gradients within the bounds: by value, then by norm, then by global norm."""
    values = [(index, each) for index, (each, _) in enumerate(gradients) if each is not None]
    clipped = [each for _, each in values]
    if bounds.value is not None:
        clipped = [tf.clip_by_value(each, -bounds.value, bounds.value) for each in clipped]
    if bounds.norm is not None:
        clipped = [tf.clip_by_norm(each, bounds.norm) for each in clipped]
    if bounds.global_norm is not None:
        clipped, _ = tf.clip_by_global_norm(clipped, bounds.global_norm)
    by_index = dict(zip((index for index, _ in values), clipped, strict=True))
    return [(by_index.get(index), variable) for index, (_, variable) in enumerate(gradients)]


def accumulate(
    one_batch: Callable[[], Batch],
    names: Sequence[str],
    variables: Sequence[tf.Variable],
    count: int,
) -> Batch:
    """Returns means over `count` batches, taken one after another so that memory holds one.

    All of it is one operation of the graph: the batches of one update cannot be told apart from
    outside, and each run of the train op is one update. Sparse gradients become dense.

    Args:
      one_batch: computes metrics and gradients of the next batch.
      names: the metrics' names.
      variables: what the gradients are for.
      count: how many batches.
    """
    used: set[int] = set()

    def add(index: Any, sums: Mapping[str, Any], totals: list[Any], waited: Any) -> Any:
        means, gradients, seconds = one_batch()
        used.update(index for index, (each, _) in enumerate(gradients) if each is not None)
        return (
            index + 1,
            {name: sums[name] + means[name] for name in names},
            [
                total if each is None else total + tf.convert_to_tensor(each)
                for total, (each, _) in zip(totals, gradients, strict=True)
            ],
            waited + seconds,
        )

    def loop() -> Any:
        start = (
            tf.constant(0),
            {name: tf.constant(0.0) for name in names},
            [tf.zeros(each.shape, each.dtype) for each in variables],
            tf.constant(0.0, tf.float64),
        )
        return tf.while_loop(lambda index, *_: index < count, add, start, parallel_iterations=1)

    # A tf.function keeps side effects, such as those of batch norm, within the loop's body.
    _, sums, totals, waited = tf.function(loop, autograph=False)()
    means = {name: value / count for name, value in sums.items()}
    gradients = [
        (total / tf.cast(count, total.dtype) if index in used else None, variable)
        for index, (total, variable) in enumerate(zip(totals, variables, strict=True))
    ]
    return means, gradients, waited
