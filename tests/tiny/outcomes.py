"""What a call gives, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, in a form that can be compared: with all types, or as its error."""
    try:
        return describe(call())
    except tf.errors.OpError as error:
        name = error.op.name if error.op is not None else None
        return type(error), error.message, name, error.error_code, error.node_def
    except Exception as error:  # noqa: BLE001 (whatever it is, both must raise it)
        return type(error), str(error)


def describe(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(type(key), key, describe(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [describe(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        # The bytes of a handle are an address; repr makes a NaN equal to itself.
        content = "" if value.dtype.names else repr(value.tolist())
        return type(value), value.dtype, value.shape, content
    if hasattr(value, "to_list"):
        return type(value), value.to_list()
    return type(value), value
