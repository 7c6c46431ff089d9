from __future__ import annotations

import tensorflow.compat.v1 as tf

import runner


def test_it_is_tensorflows_scaffold_with_a_name_and_a_flag() -> None:
    with tf.Graph().as_default():
        variable = tf.get_variable("v", initializer=1.0)
        saver = tf.train.Saver([variable])
        scaffold = runner.Scaffold(saver=saver, name="cnn", optional=True)
    assert isinstance(scaffold, tf.train.Scaffold)
    assert (scaffold.saver, scaffold.name, scaffold.optional) == (saver, "cnn", True)


def test_by_default_its_checkpoint_must_be_there() -> None:
    scaffold = runner.Scaffold()
    assert (scaffold.name, scaffold.optional) == ("", False)
