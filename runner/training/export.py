"""Reads what an exported SavedModel takes and gives, with an example from the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from runner.graph.experiment import Data
from runner.tracking.tracker import ExportedModel, Field

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def named(prefix: str, structure: Any) -> dict[str, Any]:
    """Returns a structure's leaves by name: `prefix`, or `prefix_0` and so on for several."""
    leaves = tf.nest.flatten(structure)
    if len(leaves) == 1:
        return {prefix: leaves[0]}
    return {f"{prefix}_{index}": leaf for index, leaf in enumerate(leaves)}


def exported_model(folder: Path, step: int, data: Data) -> ExportedModel:
    """Describes the SavedModel in `folder`.

    Args:
      folder: written by `mode=export`.
      step: the global step of its weights.
      data: gives the example, the first one of its test split.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(
            session, [tf.saved_model.SERVING], str(folder)
        ).signature_def[SIGNATURE]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batches = tf.compat.v1.data.make_initializable_iterator(data.test())
        features, _ = batches.get_next()
        session.run([batches.initializer, tf.compat.v1.tables_initializer()])
        example = session.run(named("features", features))
    return ExportedModel(
        folder,
        step,
        _fields(signature.inputs),
        _fields(signature.outputs),
        {name: value[:1] for name, value in example.items()},
    )


def _fields(tensors: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype),
            tuple(-1 if size is None else size for size in tf.TensorShape(info.tensor_shape)),
        )
        for name, info in sorted(tensors.items())
    )
