"""The inputs and outputs of exported models: `tf.estimator.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from runner.internals.tensorflow import (
    ClassificationOutput,
    EvalOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
    TrainOutput,
)

__all__ = [
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "TrainOutput",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


class ServingInputReceiver(_Receiver):
    """`tf.estimator.export.ServingInputReceiver`: the tensors to feed, and the features from them.

    Attributes:
      features: name -> tensor; a single tensor gets the name `feature`.
      receiver_tensors: name -> tensor that is fed; a single tensor gets the name `input`.
      receiver_tensors_alternatives: name -> further such groups, each for signatures of its own.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        """Names single tensors."""
        alternatives = receiver_tensors_alternatives and {
            name: _tensors(tensors, "input")
            for name, tensors in receiver_tensors_alternatives.items()
        }
        return super().__new__(
            cls, _tensors(features, "feature"), _tensors(receiver_tensors, "input"), alternatives
        )


class TensorServingInputReceiver(_Receiver):
    """`tf.estimator.export.TensorServingInputReceiver`, for models whose features are one tensor.

    The fields are the same as in `ServingInputReceiver`, except for `features`, a tensor.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        """Names single tensors."""
        named = ServingInputReceiver(
            {"feature": features}, receiver_tensors, receiver_tensors_alternatives
        )
        return super().__new__(cls, features, *named[1:])


def _tensors(tensors: Any, single: str) -> dict[Any, Any]:
    """Returns name -> tensor; a single tensor gets the name `single`."""
    return tensors if isinstance(tensors, dict) else {single: tensors}


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` that is fed serialized `tf.train.Example`s.

    Args:
      feature_spec: as `tf.io.parse_example` takes it.
      default_batch_size: the size of a batch; None, the default, takes any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(
            tf.string, [default_batch_size], name="input_example_tensor"
        )
        features = tf.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` that is fed the features themselves.

    Args:
      features: name -> tensor with the dtype and, after the batch dimension, the shape to feed.
      default_batch_size: the size of a batch; None, the default, takes any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {
            name: tf.compat.v1.placeholder(
                feature.dtype,
                tf.TensorShape([default_batch_size]).concatenate(feature.shape[1:]),
                name=str(name),
            )
            for name, feature in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn
