"""The splits of an experiment's data as batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from runner.config.epochs import Epochs
from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.contracts import Data, Sized, overrides
from runner.graph.epochs import in_epochs
from runner.internals.keras import compiled_with
from runner.system.user_code import calling

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
    """Returns the training batches without end, and the epochs, see `in_epochs`.

    A step takes `per_step` batches, besides those that it accumulates.
    """
    batches = batches_of("train", data, labelled=labelled)
    return in_epochs(config, data, batches, per_step=config.train.accumulate * per_step)


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
