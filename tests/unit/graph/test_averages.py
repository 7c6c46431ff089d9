from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.graph.optimization import AveragedWeights, averaged_names


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _weight() -> tf.Variable:
    return tf.get_variable("w", initializer=[1.0, 2.0], use_resource=True)


def test_averages_follow_by_their_decay() -> None:
    weight = _weight()
    averages = AveragedWeights([weight], 0.75)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(weight.assign([5.0, 2.0]))
        session.run(averages.update)
        with averages.in_place(session):
            assert session.run(weight).tolist() == [2.0, 2.0]
        assert session.run(weight).tolist() == [5.0, 2.0]


def test_with_the_global_step_they_follow_sooner_at_the_start() -> None:
    weight, step = _weight(), tf.train.get_or_create_global_step()
    averages = AveragedWeights([weight], 0.75, step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(weight.assign([11.0, 2.0]))
        session.run(averages.update)  # A decay of 1/10.
        with averages.in_place(session):
            assert session.run(weight).tolist() == [10.0, 2.0]


def test_after_an_error_the_weights_are_back_in_their_place() -> None:
    weight = _weight()
    averages = AveragedWeights([weight], 0.5)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(weight.assign([5.0, 5.0]))
        with pytest.raises(ValueError, match="within"), averages.in_place(session):
            raise ValueError("within")
        assert session.run(weight).tolist() == [5.0, 5.0]


def test_a_swap_does_not_wait_for_the_train_op() -> None:
    weight = _weight()
    train_op = weight.assign_add([1.0, 1.0])
    with tf.control_dependencies([train_op]):
        averages = AveragedWeights([weight], 0.5)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with averages.in_place(session):
            pass
        assert session.run(weight).tolist() == [1.0, 2.0]


def test_averages_in_a_checkpoint_stand_for_their_weights(tmp_path: Path) -> None:
    weight, other = _weight(), tf.get_variable("b", initializer=0.0)
    AveragedWeights([weight], 0.5)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    assert averaged_names({"w": weight, "b": other}, prefix) == {
        "w/ExponentialMovingAverage": weight,
        "b": other,
    }
