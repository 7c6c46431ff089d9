"""The splits of an experiment's data as batches, in epochs, with the weights of their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.config import conflicts
from runner.config.epochs import Epochs
from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.contracts import Data, Sized, overrides
from runner.internals.datasets import (
    draws_at_start,
    reads_generator,
    surely_ends,
    uses_other_devices,
)
from runner.internals.keras import begins_ahead, compiled_with
from runner.system.user_code import calling, raised_by_operation

# The batch size of an evaluation of the training data.
_BATCH_SIZE = 32


def build_data(config: RunConfig) -> Data:
    """Builds the data.

    Raises:
      ConfigError: when the target cannot be built or lacks a split.
    """
    data = build_target("data", config.data)
    if not isinstance(data, Data):
        splits = ("train", "validation", "test")
        lacking = [split for split in splits if not hasattr(data, split)]
        raise ConfigError.of(
            f"data: {config.data['_target_']} has no {', '.join(lacking)}",
            "data has the methods train(), validation() and test(), each a tf.data.Dataset",
        )
    return data


def batches_of(split: str, data: Data, *, labelled: bool) -> tf.data.Dataset:
    """Returns the batches of a split.

    Args:
      split: `train`, `validation` or `test`.
      data: the data.
      labelled: whether a batch must have labels.

    Raises:
      ConfigError: when it is no dataset of such batches.
      UserCodeError: when the data raise an error.
    """
    with calling(f"data.{split}()"):
        dataset = getattr(data, split)()
    if isinstance(dataset, tf.data.Dataset) and uses_other_devices(dataset):
        dataset = _read_eagerly(dataset, in_passes_of_fit=split == "train")
    element = getattr(dataset, "element_spec", None)
    if element is not None and not labelled:
        return dataset
    if isinstance(element, tuple) and len(element) in (2, 3):
        return dataset
    raise ConfigError.of(
        f"data.{split}() gives {element if element is not None else type(dataset).__name__}",
        "it must be a tf.data.Dataset of (features, labels) batches, or of (features, labels, "
        "weights)",
    )


def one_pass(split: str, data: Data, *, labelled: bool) -> tuple[tf.data.Dataset, int | None]:
    """Returns the batches of a split, and their number; None where they are known to end."""
    batches = batches_of(split, data, labelled=labelled)
    size = data.sizes().get("train") if split == "train" and isinstance(data, Sized) else None
    if size is None:
        return batches, int(batches.cardinality())
    # The last batch of endless data may hold examples of two passes.
    return batches.unbatch().take(size).batch(_BATCH_SIZE), None


def training_batches(
    config: RunConfig, data: Data, *, labelled: bool, per_step: int
) -> tuple[tf.data.Dataset, Epochs | None]:
    """Returns the training batches without end, and the epochs.

    The epochs are None, and the batches as they are, where nothing depends on epochs. A step takes
    `per_step` batches, besides those that it accumulates. Data that end, of unknown length, are
    read once, to count them.

    Raises:
      ConfigError: when the length is needed, and the data never end or are empty.
    """
    batches, train = batches_of("train", data, labelled=labelled), config.train
    per_step *= train.accumulate
    if not (train.epochs or train.steps_per_epoch or config.callbacks):
        return batches, None
    count, length = int(batches.cardinality()), train.steps_per_epoch
    meets_end = count == tf.data.UNKNOWN_CARDINALITY and per_step == 1
    if count == tf.data.UNKNOWN_CARDINALITY and (
        train.epochs if length is None else per_step == 1 and surely_ends(batches)
    ):
        count = _counted(batches)
    if length is not None:
        of_pass = count if count > 0 and per_step == 1 else None
        epochs = Epochs(length, of_pass, train.initial_epoch, meets_end and of_pass is not None)
        return batches.repeat(), epochs
    if count <= 0:
        state = f"train.epochs is {train.epochs}" if train.epochs else "callbacks are set"
        if count == 0:
            raise ConfigError.of("the training data are empty", "data.train() gives no batch")
        endless = "repeats forever" if count == tf.data.INFINITE_CARDINALITY else "has no known end"
        cause = f"the length of an epoch is not known: data.train() {endless}"
        steps = _guess(data, batches)
        raise ConfigError.of(state, cause, f"set train.steps_per_epoch={steps}")
    epochs = Epochs(-(-count // per_step), None, train.initial_epoch, meets_end)
    return _passes_of_fit(batches).repeat(), epochs


def _counted(batches: tf.data.Dataset) -> int:
    try:
        return int(batches.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    except tf.errors.OpError as error:
        raise raised_by_operation("data.train()", error) from error


def needs_labels(model: keras.Model) -> bool:
    """Whether a loss or a metric compares labels; `add_loss` and metrics of layers do not."""
    if overrides(model, "train_step"):
        return False
    compiled = compiled_with(model)
    compares = any(compiled.get(name) for name in ("loss", "metrics", "weighted_metrics"))
    return compares or overrides(model, "compute_loss")


def data_to_predict(config: RunConfig) -> tf.data.Dataset:
    """Returns the batches that a model predicts from: `predict.data`, or else the test split.

    Raises:
      ConfigError: when `predict.data` is neither batches nor data with splits.
    """
    node, split = config.predict.data, config.predict.split.value
    if node is None:
        return batches_of("test", build_data(config), labelled=False)
    built: Any = build_target("predict.data", node)
    if not isinstance(built, tf.data.Dataset) and hasattr(built, split):
        built = batches_of(split, built, labelled=False)
    if not isinstance(built, tf.data.Dataset):
        raise ConfigError.of(
            f"predict.data: {node['_target_']} returns a {type(built).__name__}",
            f"it is neither a tf.data.Dataset of batches, nor data with a method {split}()",
        )
    return built


def _read_eagerly(dataset: tf.data.Dataset, *, in_passes_of_fit: bool) -> tf.data.Dataset:
    """Returns the batches of a dataset that TensorFlow cannot write into a graph."""
    count = dataset.cardinality()
    begins_again = in_passes_of_fit and _begins_again(dataset)

    def batches() -> Iterator[Any]:
        yield from dataset
        if begins_again:
            iter(dataset)

    read = tf.data.Dataset.from_generator(batches, output_signature=dataset.element_spec)
    return read if count < 0 else read.apply(tf.data.experimental.assert_cardinality(count))


def _begins_again(batches: tf.data.Dataset) -> bool:
    """Returns whether `fit` makes an iterator that it does not read, which draws an order."""
    return batches.cardinality() >= 0 and begins_ahead() and draws_at_start(batches)


def _passes_of_fit(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns data whose passes have the orders of the passes of `fit`.

    Where their length is known, `fit` makes an iterator at the end of an epoch, and another one
    where the next epoch begins. Each draws an order, so that epochs have every second one.
    """
    count = batches.cardinality()
    if not _begins_again(batches) or reads_generator(batches):
        return batches

    def all_or_none(index: tf.Tensor) -> tf.data.Dataset:
        chosen = tf.data.Dataset.from_tensors(np.int64(0)).repeat(tf.where(index == 0, count, 0))
        # It makes the iterator also where nothing is read from it.
        return tf.data.Dataset.choose_from_datasets([batches], chosen, stop_on_empty_dataset=False)

    both = tf.data.Dataset.range(2).flat_map(all_or_none)
    return both.apply(tf.data.experimental.assert_cardinality(count))


def _guess(data: Any, batches: tf.data.Dataset) -> int | str:
    """Returns the steps of one pass if the data tell their sizes, and else `STEPS`."""
    leading = tf.nest.flatten(batches.element_spec)[0].shape[:1]
    batch = getattr(data, "batch_size", None) or (leading[0] if leading.rank else None)
    size = data.sizes().get("train") if isinstance(data, Sized) else None
    return -(-size // batch) if size and batch else "STEPS"


def weighted_by_class(
    batches: tf.data.Dataset, weights: Mapping[int, float] | None
) -> tf.data.Dataset:
    """Returns batches with the weights of their examples.

    Raises:
      ConfigError: when the batches have weights already, or labels of several outputs.
    """
    if not weights:
        return batches
    spec = batches.element_spec
    has_weights = isinstance(spec, tuple) and len(spec) == 3
    if has_weights or tf.nest.is_nested(spec[1]):
        what = "sample weights" if has_weights else "labels of several outputs"
        raise conflicts.WEIGHTED_TWICE.error(
            f"class_weight is set, and the training data give {what}"
        )

    def weighted(features: Any, labels: tf.Tensor) -> Any:
        return features, labels, class_weights(labels, weights)

    return batches.map(weighted)


def class_weights(labels: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """Returns the weight of each example, float32 [batch].

    Args:
      labels: classes [batch] or [batch, 1], or a number for each class [batch, ..., classes].
      weights: class -> weight; other classes weigh 1.
    """
    if labels.shape.rank > 1:
        is_column = labels.shape[-1] == 1
        labels = tf.squeeze(labels, -1) if is_column else tf.argmax(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int32)
    by_class = [weights.get(index, 1.0) for index in range(max(weights) + 1)]
    # The last entry is for all other classes.
    others = (labels < 0) | (labels >= len(by_class))
    return tf.gather(tf.constant([*by_class, 1.0]), tf.where(others, len(by_class), labels))
