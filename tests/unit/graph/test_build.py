"""The graph keeps every update, freezes what it should, and is the same each time it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig
from runner.errors import ConfigError
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph
from runner.graph.names import graph_names
from runner.graph.resumability import not_resumed_exactly
from runner.restoration.variables import StateClass
from tests.tiny.configs import tiny
from tests.tiny.graphs import build, opened, training_of

HERE = "tests.tiny.odd"
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


def test_a_plain_call_would_lose_these_updates() -> None:
    """Why the model is called through tf.function; when this fails, it may be called plainly."""
    keras.utils.clear_session()
    with tf.Graph().as_default():
        layer = keras.layers.BatchNormalization()
        dropout = keras.layers.Dropout(0.5)
        outputs = layer(tf.ones([4, 2]), training=True)
        dropped = dropout(tf.ones([4, 64]), training=True)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            first = session.run([outputs, dropped])[1]
            second = session.run([outputs, dropped])[1]
            assert np.array_equal(session.run(layer.moving_mean.value), [0.0, 0.0])
        assert np.array_equal(first, second)
        assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []


def test_every_variable_has_a_spec_in_the_same_order(built: BuiltGraph) -> None:
    assert [each.name for each in built.specs] == list(built.variables)
    every = built.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    assert {each.ref() for each in built.variables.values()} == {each.ref() for each in every}
    specs = {each.name: each for each in built.specs}
    kernel = specs[KERNEL]
    assert (kernel.tensor.shape, kernel.tensor.dtype) == ((8, 4), "float32")
    assert kernel.initializer == "StatelessRandomUniformV2"
    assert (kernel.trainable, kernel.frozen) == (True, False)
    assert specs["body/dense/bias"].initializer == "Const"
    assert not specs[STATISTICS[0]].trainable
    assert specs[f"{HEAD}/Adam"].tensor.shape == specs[HEAD].tensor.shape
    states = {name: each.state for name, each in specs.items()}
    assert (
        states.items()
        >= {
            KERNEL: StateClass.WEIGHT,
            STATISTICS[0]: StateClass.BATCH_NORM,
            f"{KERNEL}/Adam": StateClass.OPTIMIZER_SLOT,
            f"{KERNEL}/Adam_1": StateClass.OPTIMIZER_SLOT,
            "beta1_power": StateClass.OPTIMIZER_SLOT,
            "global_step": StateClass.GLOBAL_STEP,
        }.items()
    )


def test_names_stand_for_the_parts_of_the_step(built: BuiltGraph) -> None:
    training = training_of(built)
    names = graph_names(built.variables, training)
    assert names["loss"] is training.values["loss"]
    assert names["accuracy"] is training.values["accuracy"]
    assert names["learning_rate"] is training.learning_rate
    assert set(names["metrics"]) == {"loss", "accuracy", "learning_rate"}
    assert (names["step"], names["train_op"]) == (training.step, training.train_op)
    assert names["input_seconds"] is training.input_seconds
    assert names["body/dense/kernel"] is built.variables["body/dense/kernel"]
    assert names["global_step"] is built.variables["global_step"]


def _frozen(include: list[str]) -> RunConfig:
    return tiny(scaffolds={"part": ScaffoldConfig(VariablesConfig(include), trainable=False)})


def test_frozen_variables_get_no_gradient() -> None:
    with opened(_frozen(["body/*"])) as run:
        before = run.values(KERNEL, HEAD)
        run.train(3)
        after = run.values(KERNEL, HEAD)
    assert np.array_equal(before[0], after[0])
    assert not np.allclose(before[1], after[1])
    assert f"{KERNEL}/Adam" not in run.built.variables
    specs = {each.name: each for each in run.built.specs}
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
    assert build_graph(tiny(), "test", train=False).split.name == "test"

    with opened(tiny(seed=1)) as run:
        assert not np.allclose(run.values(HEAD)[0], initial[HEAD])


def test_a_metric_that_is_nan_does_not_reach_the_gradients() -> None:
    with opened(tiny(metrics={"undefined": {"_target_": f"{HERE}.Undefined"}})) as run:
        assert np.isnan(run.train(2, "undefined")).all()
        assert np.isfinite(run.train(1)).all()


def test_regularisation_is_part_of_the_loss() -> None:
    with opened(tiny(model={"_target_": f"{HERE}.Regularised"}, metrics={})) as run:
        assert run.train()[0] > 100
        assert run.evaluate()["loss"] > 100


def test_features_and_labels_may_be_structures() -> None:
    config = tiny(
        data={"_target_": f"{HERE}.Structured"},
        model={"_target_": f"{HERE}.OfStructure"},
        loss={"_target_": f"{HERE}.StructuredLoss"},
        metrics={},
    )
    with opened(config) as run:
        assert run.evaluate()["loss"] == pytest.approx(0.25)


def test_a_model_may_be_a_plain_callable() -> None:
    with opened(tiny(model={"_target_": f"{HERE}.PlainModel"})) as run:
        before = run.values("plain")
        run.train()
        assert not np.allclose(run.values("plain"), before)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_frozen(["*"]), "no variable is left to train"),
        (tiny(data={"_target_": f"{HERE}.NoTest"}), r"data: .*NoTest has no test"),
        (tiny(data={"_target_": f"{HERE}.NoLabels"}), r"data\.train\(\) gives TensorSpec"),
        (tiny(data={"_target_": f"{HERE}.NotADataset"}), r"data\.train\(\) gives list"),
        (
            tiny(model={"_target_": f"{HERE}.Twins"}),
            r"two variables of the model are named same/bias(.|\n)*are named same/kernel",
        ),
        (
            tiny(optimizer={"_target_": "keras.optimizers.Adam"}),
            r"keras\.optimizers\.Adam is not a tf\.compat\.v1\.train\.Optimizer",
        ),
    ],
)
def test_what_breaks_the_contract_is_refused(config: RunConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config)


def test_a_partitioned_variable_is_one_to_patterns_and_checkpoints(tmp_path: Path) -> None:
    scaffold = ScaffoldConfig(VariablesConfig([HEAD]), learning_rate_multiplier=0.5)
    config = tiny(model={"_target_": f"{HERE}.make_partitioned"}, scaffolds={"h": scaffold})
    with opened(config) as run:
        reader = tf.train.load_checkpoint(run.save(tmp_path))
    specs = {each.name: each for each in run.built.specs}
    parts = [specs[f"{HEAD}/part_{number}"] for number in (0, 1)]
    assert [each.full_name for each in parts] == [HEAD] * 2
    assert [each.full_shape for each in parts] == [(8, 2)] * 2
    assert [each.partition.offset for each in parts if each.partition] == [(0, 0), (4, 0)]
    assert specs[f"{HEAD}/part_1/Adam"].full_name == f"{HEAD}/Adam"
    assert reader.get_tensor(HEAD).shape == reader.get_tensor(f"{HEAD}/Adam").shape == (8, 2)


def _inner() -> Any:
    drawn = tf.function(lambda: tf.random_normal([]))
    return tf.function(lambda: tf.cond(tf.random_uniform([]) > 0.5, drawn, drawn))()


def _python() -> Any:
    value = tf.numpy_function(lambda: np.float32(1.0), [], tf.float32)
    return tf.ensure_shape(value, [])


def _stateless() -> Any:
    step = tf.train.get_or_create_global_step()
    return tf.random.stateless_uniform([], seed=tf.stack([step, 7]))


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (
            lambda: tf.random_uniform([], name="draw"),
            ["random numbers: draw/RandomUniform (RandomUniform) keeps its state in"],
        ),
        (_inner, ["random numbers: ", "RandomStandardNormal", "(RandomUniform)"]),
        (_python, ["Python in the step: what "]),
        (lambda: tf.add_n([tf.random_uniform([]) for _ in range(5)]), [" and 2 more keeps"]),
        (_stateless, []),
    ],
    ids=["random", "function", "python", "many", "stateless"],
)
def test_state_that_no_checkpoint_holds_is_reported(
    draw: Callable[[], Any], parts: list[str]
) -> None:
    with tf.Graph().as_default():
        variable = tf.get_variable("v", initializer=tf.random_normal([]), use_resource=True)
        lines = not_resumed_exactly(variable.assign_add(draw()).op)
    assert len(lines) == bool(parts)
    assert all(part in lines[0] for part in parts)


def test_keras_keeps_its_seeds_in_the_checkpoint(built: BuiltGraph) -> None:
    assert not_resumed_exactly(training_of(built).train_op) == []
