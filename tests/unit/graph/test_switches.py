"""The switches act: what XLA compiles, what is computed in 16 bits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import RunConfig, ScaffoldConfig, SessionConfig, VariablesConfig
from runner.errors import ConfigError
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph
from runner.graph.precision import set_threads
from runner.hooks import evaluate
from tests.tiny.configs import tiny

NET = "tests.tiny.experiment.Net"


def _built(**switches: Any) -> BuiltGraph:
    return build_graph(_config(**switches), "validation", train=True)


def _config(**switches: Any) -> RunConfig:
    return tiny(model={"_target_": NET, **switches})


def _train(built: BuiltGraph, steps: int = 5) -> list[float]:
    assert built.training is not None
    with built.graph.as_default(), tf.Session() as session:
        session.run([tf.global_variables_initializer(), built.training.input_initializer])
        fetches = (built.training.values["loss"], built.training.train_op)
        losses = [float(session.run(fetches)[0]) for _ in range(steps)]
        assert np.isfinite(evaluate(session, built.split)["loss"])
    return losses


def _compiled(built: BuiltGraph) -> int:
    return sum(
        op.get_attr("_XlaMustCompile")
        for op in built.graph.get_operations()
        if any(name == "_XlaMustCompile" for name in op.node_def.attr)
    )


def test_jit_compile_compiles_training_and_evaluation_by_xla() -> None:
    assert _compiled(_built()) == 0
    built = _built(jit_compile=True)
    assert _compiled(built) >= 3  # Forward, backward, and the evaluation.
    assert np.isfinite(_train(built)).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_computes_in_16_bits_and_keeps_weights_in_32(policy: str) -> None:
    built = _built(dtype_policy=policy)
    half = tf.as_dtype(policy.removeprefix("mixed_"))
    assert half in _matmul_dtypes(built)
    assert half not in _matmul_dtypes(_built())
    assert built.variables["body/dense/kernel"].dtype.base_dtype == tf.float32
    assert built.training is not None
    assert built.training.values["loss"].dtype == tf.float32
    losses = _train(built)
    assert np.isfinite(losses).all()
    assert losses != _train(_built())
    assert keras.config.dtype_policy().name == "float32"


def _matmul_dtypes(built: BuiltGraph) -> set[tf.DType]:
    return {
        tf.as_dtype(node.attr["T"].type)
        for function in built.graph.as_graph_def().library.function
        for node in function.node_def
        if node.op == "MatMul"
    }


def test_float16_scales_the_loss() -> None:
    assert "current_loss_scale" in _built(dtype_policy="mixed_float16").variables
    assert "current_loss_scale" not in _built(dtype_policy="mixed_bfloat16").variables


def test_the_policy_is_put_back_after_an_error() -> None:
    config = tiny(model={"_target_": NET, "dtype_policy": "mixed_bfloat16", "unit": 3})
    with pytest.raises(Exception, match="unit"):
        build_graph(config, "validation", train=True)
    assert keras.config.dtype_policy().name == "float32"


def test_all_switches_together() -> None:
    config = _config(jit_compile=True, dtype_policy="mixed_bfloat16")
    config.train.accumulate = 2
    assert np.isfinite(_train(build_graph(config, "validation", train=True), 2)).all()


def test_what_xla_compiles_gives_the_same_result() -> None:
    losses = []
    for switches in ({}, {"jit_compile": True}):
        config = tiny(
            data={"_target_": "tests.tiny.odd.Rising"},
            model={"_target_": "tests.tiny.odd.Linear", **switches},
            loss={"_target_": "keras.losses.mean_squared_error", "_partial_": True},
            metrics={},
        )
        losses.append(_train(build_graph(config, "validation", train=True)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_threads_that_this_process_cannot_change_any_more_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _built()  # Makes them.
    told: list[str] = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: told.append(text % values))
    set_threads(tiny(session=SessionConfig(intra_op_threads=77)))
    assert told == [
        "session: 77 threads asked for, but this process already has TensorFlow's own number"
    ]
    set_threads(tiny())
    assert len(told) == 1


def test_float16_allows_no_schedules_of_scaffolds() -> None:
    config = _config(dtype_policy="mixed_float16")
    config.scaffolds = {"body": ScaffoldConfig(VariablesConfig(["body/*"]), freeze_until_step=3)}
    with pytest.raises(ConfigError, match="scaffolds have schedules of their own"):
        build_graph(config, "validation", train=True)
