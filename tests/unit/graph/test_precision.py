"""Compilation by XLA, computation in 16 bits, and the session's threads."""

from __future__ import annotations

from itertools import chain
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import ScaffoldConfig, SessionConfig, TrainConfig, VariablesConfig
from runner.errors import ConfigError, UserCodeError
from runner.graph.built_graph import BuiltGraph
from runner.graph.new_graph import set_threads
from runner.internals.tensorflow import is_op_determinism_enabled
from tests.samples.graphs import build, opened, training_of
from tests.support.configs import LINEAR, tiny


def _nodes(built: BuiltGraph) -> list[tf.NodeDef]:
    graph = built.graph.as_graph_def()
    return [*graph.node, *chain(*(function.node_def for function in graph.library.function))]


def _compiled(built: BuiltGraph) -> int:
    """Returns how many calls XLA compiles."""
    attributes = (node.attr for node in _nodes(built) if node.op.endswith("PartitionedCall"))
    return sum(attribute["_XlaMustCompile"].b for attribute in attributes)


def _matmul_dtypes(built: BuiltGraph) -> set[tf.DType]:
    return {tf.as_dtype(node.attr["T"].type) for node in _nodes(built) if node.op == "MatMul"}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_computes_in_16_bits_and_keeps_weights_in_32(policy: str) -> None:
    config = tiny(model={"_target_": "tests.samples.experiment.Net", "dtype_policy": policy})
    with opened(config) as run:
        assert np.isfinite(run.train(5)).all()
        assert np.isfinite(run.evaluate()["loss"])
    built = run.built
    assert tf.as_dtype(policy.removeprefix("mixed_")) in _matmul_dtypes(built)
    assert built.variables["body/dense/kernel"].dtype.base_dtype == tf.float32
    assert training_of(built).values["loss"].dtype == tf.float32
    scales = {name for name in built.variables if name.endswith("/loss_scale/dynamic_scale")}
    assert len(scales) == (policy == "mixed_float16")
    config.model["unit"] = 3
    with pytest.raises(ConfigError, match="unit"):
        build(config)
    assert keras.config.dtype_policy().name == "float32", "also after an error"


by_xla = pytest.mark.skipif(
    is_op_determinism_enabled(), reason="Keras uses no XLA with TF_DETERMINISTIC_OPS=1, and says so"
)
LINEAR_16 = {"_target_": "tests.samples.odd.Linear", "dtype_policy": "mixed_bfloat16"}
RISING = {
    "data": {"_target_": "tests.samples.odd.Rising"},
    "loss": {"_target_": "keras.losses.mean_squared_error", "_partial_": True},
    "metrics": {},
}


@by_xla
@pytest.mark.parametrize(
    ("model", "changes", "evaluates", "tolerance"),
    [
        (LINEAR_16, {**RISING, "train": TrainConfig(accumulate=2)}, True, 1e-3),
        # Its gradient reads TensorLists of the forward pass, which XLA hands to no other function.
        pytest.param(
            *({"_target_": "tests.samples.odd.Recurrent"}, {}, False, 1e-4), marks=pytest.mark.soak
        ),
    ],
)
def test_forward_pass_loss_and_gradient_are_compiled_as_one_and_give_the_same(
    model: dict[str, Any], changes: dict[str, Any], evaluates: bool, tolerance: float
) -> None:
    losses, compiled = [], []
    for choice in ({}, {"jit_compile": True}):
        with opened(tiny(model={**model, **choice}, **changes)) as run:
            evaluated = [run.evaluate()["loss"]] * evaluates
            losses.append([*run.train(3), *evaluated])
        compiled.append(_compiled(run.built))
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    assert compiled == [0, 2], "the training step and the evaluation"


@by_xla
def test_an_operation_that_xla_cannot_compile_fails_the_first_step_by_name() -> None:
    config = tiny(metrics={"named": {"_target_": "tests.samples.odd.digits", "_partial_": True}})
    config.model["jit_compile"] = True
    with (
        pytest.raises(UserCodeError, match=r"^metrics\.named raised .*operations .* AsString"),
        opened(config) as run,
        run.built.explaining(),
    ):
        run.train()


def test_threads_that_this_process_cannot_change_any_more_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tf.Session(graph=tf.Graph()).close()  # Makes them.
    warned: list[str] = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: warned.append(text % values))
    set_threads(tiny(session=SessionConfig(intra_op_threads=77)))
    assert warned == [
        "session: 77 threads asked for, but this process already has TensorFlow's own number"
    ]
    set_threads(tiny())
    assert len(warned) == 1


def test_a_scaffold_is_frozen_until_its_step_in_float16_too() -> None:
    config = tiny(**LINEAR)
    config.model = {**config.model, "dtype_policy": "mixed_float16"}
    config.scaffolds = {"all": ScaffoldConfig(VariablesConfig(["*"]), freeze_until_step=3)}
    with opened(config) as run:
        values = run.after_steps("weight", 10)
    # The first scales of the loss are too large, and their steps are left out.
    assert values[:3] == [0.0] * 3
    assert values[-1] != 0.0
