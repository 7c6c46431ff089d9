"""The graph keeps every update, freezes what it should, and is the same each time it is built."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hydra.utils import get_object

from runner.config.choices import StateClass
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import ConfigError
from runner.graph.build import MAKERS
from runner.graph.built_graph import BuiltGraph, GraphMaker
from runner.graph.input_pipeline import not_resumed_exactly
from runner.graph.session_variables import variable_specs
from runner.planning.model_variables import initializers, model_variables
from tests.samples.graphs import build, opened, training_of
from tests.support.configs import LINEAR, tiny

HERE = "tests.samples.odd"
KERNEL, HEAD = "body/dense/kernel", "head/kernel"
STATISTICS = ("body/norm/moving_mean", "body/norm/moving_variance")


@pytest.fixture(scope="module")
def built() -> BuiltGraph:
    """The tiny experiment's graph, for tests that only open sessions of it."""
    return build()


def test_batch_norm_statistics_move_in_training_and_not_in_evaluation(built: BuiltGraph) -> None:
    with opened(built) as run:
        values = [run.values(*STATISTICS)]
        for _ in range(2):
            run.train()
            values.append(run.values(*STATISTICS))
        run.evaluate()
        values.append(run.values(*STATISTICS))
    for first, second, third, evaluated in zip(*values, strict=True):
        assert not np.allclose(first, second)
        assert not np.allclose(second, third)
        assert np.array_equal(third, evaluated)


def test_dropout_changes_between_steps_and_is_off_in_evaluation() -> None:
    """Every batch is the same, and the metric `sum` is the sum of its features after dropout."""
    still = "tensorflow.compat.v1.train.GradientDescentOptimizer"
    config = tiny(
        data={"_target_": f"{HERE}.Ones"},
        model={"_target_": f"{HERE}.Dropped"},
        metrics={"sum": {"_target_": f"{HERE}.Sum"}},
        optimizer={"_target_": still, "learning_rate": 0.0},
    )
    with opened(config) as run:
        assert len(set(run.train(4, "sum"))) == 4
        assert [run.evaluate()["sum"] for _ in range(2)] == [64.0, 64.0]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_nothing_is_left_of_a_graph(jit_compile: bool) -> None:
    """Many trials, and many calls of `runner.fit`, share one process."""
    model = {"_target_": f"{HERE}.Plain", "jit_compile": jit_compile}

    def graphs() -> int:
        build(tiny(model=model, train=TrainConfig(accumulate=1 if jit_compile else 2)))
        gc.collect()
        return sum(isinstance(thing, tf.Graph) for thing in gc.get_objects())

    assert graphs() == graphs()


def test_every_maker_of_the_table_fulfils_the_contract() -> None:
    for key, name in MAKERS.items():
        assert issubclass(get_object(name), GraphMaker), key


def test_every_variable_has_a_spec_in_the_same_order(built: BuiltGraph) -> None:
    assert [spec.name for spec in built.specs] == list(built.variables)
    every = built.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    assert {variable.ref() for variable in built.variables.values()} == {
        variable.ref() for variable in every
    }
    specs = {spec.name: spec for spec in built.specs}
    random, constant = "GlorotUniform", "Zeros"
    for name, state, trainable, shape, initializer in (
        (KERNEL, StateClass.weights, True, (8, 4), random),
        ("body/dense/bias", StateClass.weights, True, (4,), constant),
        (STATISTICS[0], StateClass.batch_norm, False, (4,), constant),
        (f"{HEAD}/Adam", StateClass.optimizer_slots, False, (4, 2), constant),
        ("beta1_power", StateClass.optimizer_slots, False, (), "Constant(0.9)"),
        ("global_step", StateClass.global_step, False, (), constant),
    ):
        spec = specs[name]
        assert (spec.state, spec.trainable, spec.frozen) == (state, trainable, False), name
        assert (spec.tensor.shape, spec.initializer) == (shape, initializer), name
    assert specs[KERNEL].tensor.dtype == "float32"


@pytest.mark.parametrize(
    ("initializer", "name"),
    [
        (tf.zeros_initializer(), "Zeros"),
        (tf.constant_initializer(0.25), "Constant(0.25)"),
        (tf.constant_initializer(np.arange(1600).reshape(40, 40)), "Constant"),
        (lambda shape, **_: tf.ones(shape) * 0.5, "Constant"),
        (tf.glorot_uniform_initializer(), "RandomUniform"),
        (tf.truncated_normal_initializer(stddev=0.1), "TruncatedNormal"),
        (tf.orthogonal_initializer(), "Qr"),
        (lambda shape, **_: tf.range(40.0) + tf.zeros(shape), "Range"),
    ],
)
def test_an_initializer_that_keras_does_not_know_is_named_by_its_operations(
    initializer: Any, name: str
) -> None:
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [40, 40], initializer=initializer, use_resource=True)
        (spec,) = variable_specs({"w": weight}, {"w": True}, policies={}, training=None)
    assert spec.initializer == name


def test_keras_layers_name_their_initializers() -> None:
    model = keras.Sequential(
        [
            keras.Input((3, 2)),
            keras.layers.LSTM(4, name="lstm"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, kernel_initializer="he_normal", name="head"),
        ]
    )
    named = initializers(model)
    assert {name: named[name] for name in model_variables(model) if name in named} == {
        "lstm/lstm_cell/kernel": "GlorotUniform",
        "lstm/lstm_cell/recurrent_kernel": keras.initializers.Orthogonal.__name__,
        "lstm/lstm_cell/bias": "Zeros, forget gate 1",
        "norm/gamma": "Ones",
        "norm/beta": "Zeros",
        "norm/moving_mean": "Zeros",
        "norm/moving_variance": "Ones",
        "head/kernel": "HeNormal",
        "head/bias": "Zeros",
    }
    assert initializers(print) == {}


def _frozen(include: list[str], **changes: Any) -> RunConfig:
    frozen = ScaffoldConfig(VariablesConfig(include), trainable=False)
    return tiny(scaffolds={"part": frozen}, **changes)


def test_frozen_variables_get_no_gradient() -> None:
    with opened(_frozen(["body/*"])) as run:
        before = run.values(KERNEL, HEAD)
        run.train(3)
        after = run.values(KERNEL, HEAD)
    assert np.array_equal(before[0], after[0])
    assert not np.allclose(before[1], after[1])
    assert f"{KERNEL}/Adam" not in run.built.variables
    specs = {spec.name: spec for spec in run.built.specs}
    assert (specs[KERNEL].trainable, specs[KERNEL].frozen) == (False, True)
    assert not specs[STATISTICS[0]].frozen


def test_a_restored_graph_continues_as_if_it_had_not_stopped(
    built: BuiltGraph, tmp_path: Path
) -> None:
    """The same batches, masks and slots in a second build: the losses agree to the last digit."""
    with opened(built) as run:
        initial = run.run(dict(built.variables))
        run.train(5)
        prefix = run.save(tmp_path)
        evaluated = run.evaluate()
        uninterrupted = run.train(12)  # Past the end of an epoch of 8 batches.
        # That the comparison can fail: from the input's beginning other batches come.
        built.saver.restore(run.session, prefix)
        run.run(training_of(built).input_initializer)
        assert run.train(12) != uninterrupted

    again = build()
    assert list(again.variables) == list(built.variables)
    assert again.specs == built.specs
    assert not_resumed_exactly(training_of(again).train_op) == []
    with opened(again) as run:
        for name, value in run.run(dict(again.variables)).items():
            assert np.array_equal(value, initial[name]), name
    with opened(again, restore=prefix) as run:
        assert run.train(12) == uninterrupted

    evaluating = build(train=False)
    assert evaluating.training is None
    assert not any("Adam" in name for name in evaluating.variables)
    with opened(evaluating, restore=prefix) as run:
        assert run.evaluate() == evaluated

    with opened(tiny(seed=1)) as run:
        assert not np.allclose(run.values(HEAD)[0], initial[HEAD])


def test_the_loss_has_the_models_penalty_and_nothing_of_the_metrics() -> None:
    metrics = {"undefined": {"_target_": f"{HERE}.Undefined"}}
    with opened(tiny(model={"_target_": f"{HERE}.Regularised"}, metrics=metrics)) as run:
        assert np.isnan(run.train(2, "undefined")).all()
        (loss,) = run.train()
        assert 100 < loss < np.inf
        assert run.evaluate()["loss"] > 100


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_frozen(["*"], **LINEAR), "no variable is left to train"),
        (tiny(data={"_target_": "builtins.list"}), "data: .*list has no train, validation, test"),
        (tiny(data={"_target_": f"{HERE}.NoLabels"}), r"data\.train\(\) gives TensorSpec"),
        (
            tiny(**{**LINEAR, "optimizer": {"_target_": "builtins.list"}}),
            r"optimizer: builtins\.list is not an optimizer",
        ),
    ],
)
def test_what_breaks_the_contract_is_refused(config: RunConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config)


def test_layers_of_one_name_are_told_apart_by_the_models_attributes() -> None:
    built = build(tiny(model={"_target_": f"{HERE}.Twins"}))
    assert {"first/kernel", "second/kernel"} <= {*built.variables}
