"""Names of variables, and hooks that refer to parts of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow.compat.v1 as tf

from runner.config.instantiation import References
from runner.errors import ConfigError
from runner.graph.hook_entries import HOOKS, graph_references
from runner.planning.model_variables import model_variables
from tests.samples.experiment import Net

NAN = "tensorflow.compat.v1.train.NanTensorHook"
STOP = "runner.hooks.EarlyStoppingHook"
GRAPH = References({"graph": {"loss": object()}})


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    keras.utils.clear_session()
    with tf.Graph().as_default():
        yield


def test_names_are_paths_without_the_models_name_whatever_was_built_before() -> None:
    keras.layers.Dense(2)(tf.zeros([1, 8]))
    net = Net()
    net(tf.zeros([1, 8]))
    known = model_variables(net)
    assert list(known) == [
        "body/dense/kernel",
        "body/dense/bias",
        "body/norm/gamma",
        "body/norm/beta",
        "body/norm/moving_mean",
        "body/norm/moving_variance",
        "seed_generator/seed_generator_state",
        "head/kernel",
        "head/bias",
    ]


def test_tensorflows_own_names_are_found() -> None:
    tensor, nothing = tf.constant(1, name="one"), SimpleNamespace()
    training: Any = SimpleNamespace(
        values={}, learning_rate=None, step=nothing, train_op=nothing, input_seconds=nothing
    )
    known = graph_references(tf.get_default_graph(), {}, training)
    assert known.resolve(["${graph:one:0}", "${graph:one}"]) == [tensor, tensor.op]
    assert known.problems("hooks", ["${graph:one:0}"]) == []
    assert len(known.problems("hooks", ["${graph:two}", "${graph:one:7}"])) == 2


def test_hooks_over_the_graph_and_over_the_run_are_checked() -> None:
    hooks = {
        "graph": {"_target_": NAN, "loss_tensor": "${graph:loss}"},
        "run": {"_target_": STOP, "evaluation": "${run:evaluation}"},
    }
    HOOKS.check(hooks, GRAPH)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": NAN, "loss_tensor": "${graph:los}"},
            r"hooks\.mine\.loss_tensor is \$\{graph:los\}(.|\n)*choices: loss",
        ),
        ({"_target_": NAN, "loss_tensor": "${run:savr}"}, r"is \$\{run:savr\}(.|\n)*saver"),
        ({"_target_": NAN, "los": "${run:saver}"}, r"hooks\.mine\.los is not an argument"),
        ({"_target_": "builtins.dict"}, r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess"),
    ],
)
def test_a_mistake_is_found_before_there_is_a_run(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HOOKS.check({"mine": node}, GRAPH)
