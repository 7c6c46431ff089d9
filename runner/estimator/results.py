"""The summaries of `Estimator.evaluate`, and the results of `Estimator.predict`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

logger = logging.getLogger(__name__)


class StopAfterBatches(tf.compat.v1.train.SessionRunHook):
    """Ends an evaluation after a number of batches."""

    def __init__(self, batches: int) -> None:
        self._batches = self._left = batches

    def begin(self) -> None:
        """Starts counting."""
        self._left = self._batches

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts."""
        self._left -= 1
        if self._left <= 0:
            run_context.request_stop()


def write_summaries(folder: str, values: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes metrics for TensorBoard, as Estimator did.

    Args:
      folder: the directory of the event file.
      values: metric name -> number, array, or serialized summary; other values are left out.
      checkpoint: the evaluated checkpoint; None for the initial values.
    """
    summary = tf.compat.v1.Summary()
    for name, value in values.items():
        if isinstance(value, bytes):  # A summary, of an image for example.
            try:
                parts = tf.compat.v1.Summary.FromString(value).value
            except DecodeError:
                logger.warning("Metric %s is a string and no summary: it is not written", name)
                continue
            for index, part in enumerate(parts):
                part.tag = f"{name}/{index}"
                summary.value.append(part)
        elif isinstance(value, np.ndarray):
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        elif isinstance(value, np.number) and name != "global_step":
            summary.value.add(tag=name, simple_value=float(value))
    if checkpoint is not None:
        summary.value.add(tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint))
    with tf.Graph().as_default():
        # One writer for a directory: files of one second would have the same name.
        writer = tf.compat.v1.summary.FileWriterCache.get(folder)
        writer.add_summary(summary, int(values["global_step"]))
        writer.flush()


def select(predictions: Any, keys: Iterable[str] | str | None) -> Any:
    """Returns the predictions with some names; None selects all.

    Raises:
      ValueError: when no prediction has one of these names.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    names = [keys] if isinstance(keys, str) else list(keys)
    selected = {name: value for name, value in predictions.items() if name in names}
    if not selected:
        raise ValueError(
            f"Expected to run at least one output from {list(predictions)}, provided {names}."
        )
    return selected


def examples(batch: Any) -> Iterator[Any]:
    """Yields the predictions of a batch, example by example.

    Raises:
      ValueError: when the predictions differ in length.
    """
    if not isinstance(batch, dict):
        yield from batch
        return
    for values in zip(*batch.values(), strict=True):
        yield dict(zip(batch, values, strict=True))
