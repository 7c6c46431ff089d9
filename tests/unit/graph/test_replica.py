"""A batch is divided into parts whose weights add up to 1 and whose examples to the batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from runner.graph.replica import part_of


@pytest.mark.parametrize(
    ("size", "sizes"), [(6, [2, 2, 2]), (7, [3, 2, 2]), (8, [3, 3, 2]), (2, [1, 1, 0]), (1, [1])]
)
def test_parts_of_every_kind_of_tensor_are_the_batch(size: int, sizes: list[int]) -> None:
    numbers = np.arange(size)
    batch = {
        "a": tf.constant(numbers),
        "ragged": tf.ragged.constant([[number] * (number % 3) for number in numbers]),
        "rate": tf.constant(0.5),
        "sparse": tf.sparse.from_dense(np.eye(size)[:, :1] + numbers[:, None] + 1.0),
    }
    parts = [part_of(batch, index, 3) for index in range(3)]
    weights = [float(weight) for _, weight in parts]
    assert weights == pytest.approx([*np.array(sizes) / size, *[0.0] * (3 - len(sizes))])
    # A part without examples repeats the last one, and counts for nothing.
    counted = [part for part, weight in parts if weight]
    for name in ("a", "ragged", "sparse"):
        whole = [part[name] for part in counted]
        if name == "sparse":
            joined = tf.sparse.to_dense(tf.sparse.concat(0, whole))
            assert joined.numpy().tolist() == tf.sparse.to_dense(batch[name]).numpy().tolist()
        else:
            joined = tf.concat(whole, 0)
            expected = batch[name]
            lists = [
                value.to_list() if name == "ragged" else value.numpy().tolist()
                for value in (joined, expected)
            ]
            assert lists[0] == lists[1]
    assert [float(part["rate"]) for part, _ in parts] == [0.5] * 3
