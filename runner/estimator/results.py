"""What `Estimator.evaluate` writes, and what `Estimator.predict` yields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


class StopAfterBatches(tf.compat.v1.train.SessionRunHook):
    """Ends an evaluation after a number of batches."""

    def __init__(self, batches: int) -> None:
        self._left = batches

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts."""
        self._left -= 1
        if self._left <= 0:
            run_context.request_stop()


def write_summaries(folder: str, values: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes metrics for TensorBoard, as Estimator did.

    Args:
      folder: of the event file.
      values: metric name -> value: a number, an array, or a serialized summary; others are left
        out.
      checkpoint: what was evaluated; None for the initial values.
    """
    summary = tf.compat.v1.Summary()
    for name, value in values.items():
        if isinstance(value, bytes):  # A summary, of an image for example.
            for index, each in enumerate(tf.compat.v1.Summary.FromString(value).value):
                each.tag = f"{name}/{index}"
                summary.value.append(each)
        elif isinstance(value, np.ndarray):
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        elif isinstance(value, np.number) and name != "global_step":
            summary.value.add(tag=name, simple_value=float(value))
    if checkpoint is not None:
        summary.value.add(tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint))
    with tf.Graph().as_default(), tf.compat.v1.summary.FileWriter(folder) as writer:
        writer.add_summary(summary, int(values["global_step"]))


def chosen(predictions: Any, keys: Iterable[str] | str | None) -> Any:
    """Returns the predictions of some names, all of them for None.

    Raises:
      ValueError: when there are none of these names.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    chosen = {name: value for name, value in predictions.items() if name in wanted}
    if not chosen:
        known = list(predictions)
        raise ValueError(f"Expected to run at least one output from {known}, provided {wanted}.")
    return chosen


def examples(batch: Any) -> Iterator[Any]:
    """Yields what a batch of predictions holds for each example.

    Raises:
      ValueError: when its predictions differ in length.
    """
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {name: len(value) for name, value in batch.items()}
    length = next(iter(lengths.values()))
    for name, other in lengths.items():
        if other != length:
            raise ValueError(
                f"Batch length of predictions should be same. {name} has different batch length "
                "than others."
            )
    for index in range(length):
        yield {name: value[index] for name, value in batch.items()}
