"""TensorFlow V2 bundles, as `tf.compat.v1.train.Saver` writes them."""

from __future__ import annotations

import tensorflow as tf

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.errors import CheckpointError, Problem

GLOBAL_STEP = tf.compat.v1.GraphKeys.GLOBAL_STEP


class BundleReader(CheckpointReader):
    """Reads the bundle at `prefix`, i.e. `prefix.index` and its data shards.

    Follows `tf.train.load_checkpoint`.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        try:
            reader = tf.train.load_checkpoint(self.prefix)
            shapes = reader.get_variable_to_shape_map()
            dtypes = reader.get_variable_to_dtype_map()
            step = int(reader.get_tensor(GLOBAL_STEP)) if shapes.get(GLOBAL_STEP) == [] else None
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                Problem(
                    f"{self.prefix} cannot be read as a TensorFlow checkpoint",
                    str(error).splitlines()[0],
                    "name another checkpoint, or restore its files from a copy",
                )
            ) from error
        tensors = {
            name: TensorSpec(name, tuple(shape), dtypes[name].name)
            for name, shape in sorted(shapes.items())
        }
        return CheckpointSpec(self.prefix, step, tensors)
