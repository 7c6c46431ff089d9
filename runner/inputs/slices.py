"""Examples in sparse and ragged tensors, which cannot be indexed as arrays can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Slices:
    """Examples of which a part is sparse or ragged; a slice of them has some of the examples.

    They are constants of the graph, 2 GB at most, and checkpoints hold those that are shuffled.

    Attributes:
      examples: nested tensors of one example after the other.
      count: how many there are.
    """

    examples: tf.data.Dataset
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> Slices:
        begin, end, _ = part.indices(self.count)
        return Slices(self.examples.skip(begin).take(end - begin), end - begin)

    def batches(self, size: int, seed: int | None) -> tf.data.Dataset:
        """Returns one pass in batches, in another order each time if there is a seed."""
        examples = self.examples if seed is None else self.examples.shuffle(self.count, seed=seed)
        return examples.batch(size, drop_remainder=self.count % size == 0)


def sliced(arrays: Any) -> Any:
    """Returns `Slices` of nested arrays of which some are sparse or ragged; others as they are."""
    if not any(
        isinstance(part, tf.SparseTensor | tf.RaggedTensor) for part in tf.nest.flatten(arrays)
    ):
        return arrays
    examples = tf.data.Dataset.from_tensor_slices(arrays)
    return Slices(examples, int(examples.cardinality()))


def composite(part: Any) -> tf.SparseTensor | tf.RaggedTensor | None:
    """Returns a sparse or ragged tensor, also of a matrix of SciPy; None for anything else."""
    if isinstance(part, tf.SparseTensor | tf.RaggedTensor):
        return part
    if not hasattr(part, "tocoo"):
        return None
    matrix = part.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1).astype(np.int64)
    return tf.sparse.reorder(tf.SparseTensor(indices, matrix.data, matrix.shape))
