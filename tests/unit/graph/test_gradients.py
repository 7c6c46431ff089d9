from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import ClipConfig
from runner.graph.optimization import Batch, Gradients, accumulate, clip


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _gradients() -> Gradients:
    variables = [tf.get_variable(name, [2]) for name in "abc"]
    return [
        (tf.constant([3.0, -4.0]), variables[0]),
        (None, variables[1]),
        (tf.constant([0.0, 12.0]), variables[2]),
    ]


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        (ClipConfig(), [3.0, -4.0], [0.0, 12.0]),
        (ClipConfig(value=3.5), [3.0, -3.5], [0.0, 3.5]),
        (ClipConfig(norm=2.5), [1.5, -2.0], [0.0, 2.5]),
        (ClipConfig(global_norm=6.5), [1.5, -2.0], [0.0, 6.0]),
        (ClipConfig(norm=2.5, global_norm=100.0), [1.5, -2.0], [0.0, 2.5]),
    ],
)
def test_gradients_keep_their_bounds(
    bounds: ClipConfig, first: list[float], last: list[float]
) -> None:
    gradients = _gradients()
    clipped = clip(gradients, bounds)
    assert [variable for _, variable in clipped] == [variable for _, variable in gradients]
    assert clipped[1][0] is None
    with tf.Session() as session:
        values = session.run([clipped[0][0], clipped[2][0]])
    np.testing.assert_allclose(values, [first, last], rtol=1e-6)


def test_several_batches_are_averaged_one_after_another() -> None:
    weight = tf.get_variable("w", initializer=[0.0, 0.0], use_resource=True)
    unused = tf.get_variable("u", [1])
    seen = tf.get_variable("seen", initializer=0.0, use_resource=True)
    data = tf.data.Dataset.from_tensor_slices(
        np.array([[1, 0], [2, 0], [6, 3]], np.float32)
    ).repeat()
    iterator = tf.data.make_initializable_iterator(data)

    def one_batch() -> Batch:
        batch = iterator.get_next()
        seen.assign_add(batch[0])  # A side effect like those of batch norm.
        (gradient,) = tf.gradients(tf.reduce_sum(batch * weight), [weight.handle])
        return (
            {"loss": batch[0]},
            [(gradient, weight), (None, unused)],
            tf.constant(0.5, tf.float64),
        )

    means, gradients, waited = accumulate(one_batch, ["loss"], [weight, unused], 3)
    assert gradients[1] == (None, unused)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), iterator.initializer])
        assert session.run((means["loss"], waited)) == (3.0, 1.5)
        assert session.run(gradients[0][0]).tolist() == [3.0, 1.0]
        assert session.run(seen) == 18.0
