from __future__ import annotations

import tensorflow.compat.v1 as tf

from runner.graph.build import build_graph
from runner.graph.names import finder, graph_names
from tests.tiny.configs import tiny


def test_names_stand_for_the_parts_of_the_step() -> None:
    built = build_graph(tiny(), "validation", train=True)
    training = built.training
    assert training is not None
    names = graph_names(built.variables, training)
    assert names["loss"] is training.values["loss"]
    assert names["accuracy"] is training.values["accuracy"]
    assert names["learning_rate"] is training.learning_rate
    assert set(names["metrics"]) == {"loss", "accuracy", "learning_rate"}
    assert (names["step"], names["train_op"]) == (training.step, training.train_op)
    assert names["input_seconds"] is training.input_seconds
    assert names["body/dense/kernel"] is built.variables["body/dense/kernel"]
    assert names["global_step"] is built.variables["global_step"]


def test_tensorflows_own_names_are_found() -> None:
    with tf.Graph().as_default() as graph:
        tensor = tf.constant(1, name="one")
    find = finder(graph)
    assert find("one:0") is tensor
    assert find("one") is tensor.op
    assert find("two") is None
    assert find("one:7") is None
