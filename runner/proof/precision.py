"""The precision of a comparison: of what is compared, and of the computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from runner.planning.comparison import TOLERANCES
from runner.proof.reference import Reference


def least_precise(layers: Iterable[Any], reference: Reference) -> str:
    """Returns the least precise dtype that layers compute in, or that was recorded."""
    inputs = keras.layers.InputLayer
    dtypes = {layer.compute_dtype for layer in layers if not isinstance(layer, inputs)}
    recorded = {**reference.outputs, **reference.outlines}
    dtypes |= {array.dtype.name for array in recorded.values()}
    return next((dtype for dtype in TOLERANCES if dtype in dtypes), "float32")


@contextmanager
def full_precision() -> Iterator[None]:
    """Turns TF32 off, in which GPUs multiply float32 with 10 bits."""
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(enabled)
