"""The signature of an exported model, and the names of its features and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def named(prefix: str, structure: Any) -> dict[str, Any]:
    """Returns a structure's leaves by name: the keys of dictionaries, nested ones joined by `_`.

    A leaf outside of any dictionary is called `prefix`, or `prefix_0` and so on for several.
    """
    keyed = structure if isinstance(structure, Mapping) else {prefix: structure}
    by_path = {"_".join(map(str, path)): leaf for path, leaf in keras.tree.flatten_with_path(keyed)}
    leaves = tf.nest.flatten(structure)
    several = keyed is structure or len(leaves) > 1
    return by_path if several and len(by_path) == len(leaves) else numbered(prefix, leaves)


def first_example(features: Any, initializer: tf.Operation) -> dict[str, Any]:
    """Returns the first example of the default graph's features by name, as arrays.

    `initializer` starts the input that they come from.
    """
    with tf.compat.v1.Session() as session:
        session.run([initializer, tf.compat.v1.tables_initializer()])
        batch = session.run(named("features", features))
    return {name: value[:1] for name, value in batch.items()}


def numbered(prefix: str, leaves: Sequence[Any]) -> dict[str, Any]:
    """Names leaves whose keys are ambiguous, such as `a_b` beside `b` in `a`."""
    if len(leaves) == 1:
        return {prefix: leaves[0]}
    return {f"{prefix}_{index}": leaf for index, leaf in enumerate(leaves)}
