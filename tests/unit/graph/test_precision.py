"""What XLA compiles, what is computed in 16 bits, and the session's threads."""

from __future__ import annotations

from itertools import chain
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import RunConfig, ScaffoldConfig, SessionConfig, VariablesConfig
from runner.errors import ConfigError
from runner.graph.experiment import BuiltGraph
from runner.graph.precision import set_threads
from tests.tiny.configs import tiny
from tests.tiny.graphs import build, opened, training_of


def _config(**model: Any) -> RunConfig:
    return tiny(model={"_target_": "tests.tiny.experiment.Net", **model})


def _compiled(built: BuiltGraph) -> int:
    graph = built.graph.as_graph_def()
    nodes = chain(graph.node, *(each.node_def for each in graph.library.function))
    return sum(each.attr["_XlaMustCompile"].b for each in nodes if "_XlaMustCompile" in each.attr)


def _matmul_dtypes(built: BuiltGraph) -> set[tf.DType]:
    return {
        tf.as_dtype(node.attr["T"].type)
        for function in built.graph.as_graph_def().library.function
        for node in function.node_def
        if node.op == "MatMul"
    }


def test_without_a_choice_nothing_is_compiled_or_halved() -> None:
    built = build(_config())
    assert _compiled(built) == 0
    assert _matmul_dtypes(built) == {tf.float32}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_computes_in_16_bits_and_keeps_weights_in_32(policy: str) -> None:
    with opened(_config(dtype_policy=policy)) as run:
        assert np.isfinite(run.train(5)).all()
        assert np.isfinite(run.evaluate()["loss"])
    built = run.built
    assert tf.as_dtype(policy.removeprefix("mixed_")) in _matmul_dtypes(built)
    assert built.variables["body/dense/kernel"].dtype.base_dtype == tf.float32
    assert training_of(built).values["loss"].dtype == tf.float32
    assert ("current_loss_scale" in built.variables) is (policy == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"


def test_the_policy_is_put_back_after_an_error() -> None:
    with pytest.raises(Exception, match="unit"):
        build(_config(dtype_policy="mixed_bfloat16", unit=3))
    assert keras.config.dtype_policy().name == "float32"


def test_jit_compile_takes_training_and_evaluation_in_any_precision_and_several_batches() -> None:
    config = _config(jit_compile=True, dtype_policy="mixed_bfloat16")
    config.train.accumulate = 2
    with opened(config) as run:
        assert np.isfinite(run.train(2)).all()
        assert np.isfinite(run.evaluate()["loss"])
    assert _compiled(run.built) >= 3  # Forward, backward, and the evaluation.


def test_what_xla_compiles_gives_the_same_result() -> None:
    losses = []
    for choice in ({}, {"jit_compile": True}):
        config = tiny(
            data={"_target_": "tests.tiny.odd.Rising"},
            model={"_target_": "tests.tiny.odd.Linear", **choice},
            loss={"_target_": "keras.losses.mean_squared_error", "_partial_": True},
            metrics={},
        )
        with opened(config) as run:
            losses.append(run.train(5))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


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


def test_float16_allows_no_schedules_of_scaffolds() -> None:
    config = _config(dtype_policy="mixed_float16")
    config.scaffolds = {"body": ScaffoldConfig(VariablesConfig(["body/*"]), freeze_until_step=3)}
    with pytest.raises(ConfigError, match="scaffolds have schedules of their own"):
        build(config)
