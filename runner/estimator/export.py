"""What an exported model takes and gives: `tf.estimator.export`."""

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

# Field -> the name that a single tensor has in the dict of the field.
_SINGLE = {
    "feature": "feature",
    "receiver_tensor": "input",
    "receiver_tensors_alternative": "input",
}


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any = None


class ServingInputReceiver(_Receiver):
    """`tf.estimator.export.ServingInputReceiver`: what is fed, and the features made of it.

    Attributes:
      features: name -> tensor; a single tensor is given the name `feature`.
      receiver_tensors: name -> tensor that is fed; a single one is given the name `input`.
      receiver_tensors_alternatives: name -> further such groups, each for signatures of its own.

    Raises:
      ValueError: when a field is missing, a name is not a string or a value not a tensor.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        """Checks the fields."""
        alternatives = receiver_tensors_alternatives
        if alternatives is not None:
            if not isinstance(alternatives, dict):
                raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives}.")
            alternatives = {
                name: _tensors(each, "receiver_tensors_alternative")
                for name, each in alternatives.items()
            }
        return super().__new__(
            cls,
            _tensors(features, "feature"),
            _tensors(receiver_tensors, "receiver_tensor"),
            alternatives,
        )


class TensorServingInputReceiver(_Receiver):
    """`tf.estimator.export.TensorServingInputReceiver`, for models whose features are one tensor.

    The fields are those of `ServingInputReceiver`, but for `features`, a tensor.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        """Checks the fields."""
        if features is None:
            raise ValueError("features must be defined.")
        if isinstance(features, Mapping):
            raise ValueError("feature must be a Tensor, SparseTensor, or RaggedTensor.")
        named = ServingInputReceiver(features, receiver_tensors, receiver_tensors_alternatives)
        return super().__new__(cls, named.features["feature"], *named[1:])


def _tensors(tensors: Any, field: str) -> dict[Any, Any]:
    if tensors is None:
        raise ValueError(f"{field}s must be defined.")
    named = tensors if isinstance(tensors, dict) else {_SINGLE[field]: tensors}
    for name, tensor in named.items():
        if not isinstance(name, str) and field != "feature":
            raise ValueError(f"{field} keys must be strings: {name}.")
        if not isinstance(name, str | int):
            raise ValueError(f"{field} keys must be strings or ints: {name}.")
        if not isinstance(tensor, tf.Tensor | tf.sparse.SparseTensor | tf.RaggedTensor):
            kinds = "must be a Tensor, SparseTensor, or RaggedTensor."
            raise ValueError(f"{field} {name} {kinds}")
    return named


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` that is fed serialized `tf.train.Example`s.

    Args:
      feature_spec: as `tf.io.parse_example` takes it.
      default_batch_size: how many; None, the default, takes any number.
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
      features: name -> tensor, of which dtype and shape count, the latter after the batch.
      default_batch_size: the size of a batch; None, the default, takes any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {
            name: tf.compat.v1.placeholder(
                each.dtype, [default_batch_size, *each.shape[1:]], name=str(name)
            )
            for name, each in features.items()
        }
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn
