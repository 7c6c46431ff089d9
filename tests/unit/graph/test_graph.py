"""The graph keeps every update, freezes what it should, and is the same each time it is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig
from runner.errors import ConfigError
from runner.graph.build import build_data, build_graph
from runner.graph.experiment import BuiltGraph
from runner.hooks import evaluate
from runner.restoration.variables import StateClass
from tests.tiny.configs import tiny

HERE = "tests.tiny.odd"


@contextmanager
def _session(built: BuiltGraph) -> Iterator[tf.Session]:
    assert built.training is not None
    with built.graph.as_default(), tf.Session() as session:
        session.run([tf.global_variables_initializer(), built.training.input_initializer])
        yield session


def _build(config: RunConfig | None = None) -> BuiltGraph:
    return build_graph(config or tiny(), "validation", train=True)


def test_batch_norm_statistics_move_with_the_train_op() -> None:
    built = _build()
    assert built.training is not None
    with _session(built) as session:
        mean = built.variables["body/norm/moving_mean"]
        variance = built.variables["body/norm/moving_variance"]
        before = session.run([mean, variance])
        session.run(built.training.train_op)
        once = session.run([mean, variance])
        session.run(built.training.train_op)
        twice = session.run([mean, variance])
    for first, second, third in zip(before, once, twice, strict=True):
        assert not np.allclose(first, second)
        assert not np.allclose(second, third)


def test_batch_norm_statistics_stand_still_in_evaluation() -> None:
    built = _build()
    with _session(built) as session:
        mean = built.variables["body/norm/moving_mean"]
        before = session.run(mean)
        evaluate(session, built.split)
        assert np.array_equal(session.run(mean), before)


def _dropout() -> RunConfig:
    """Every batch is the same, and the metric `sum` is the sum of its features after dropout."""
    return tiny(
        data={"_target_": f"{HERE}.Ones"},
        model={"_target_": f"{HERE}.Dropped"},
        metrics={"sum": {"_target_": f"{HERE}.Sum"}},
        optimizer={
            "_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer",
            "learning_rate": 0.0,
        },
    )


def test_a_dropout_mask_changes_between_steps() -> None:
    built = _build(_dropout())
    assert built.training is not None
    with _session(built) as session:
        sums = [
            session.run([built.training.values["sum"], built.training.train_op])[0]
            for _ in range(4)
        ]
    assert len(set(sums)) == 4


def test_dropout_is_off_in_evaluation() -> None:
    built = _build(_dropout())
    with _session(built) as session:
        results = [evaluate(session, built.split)["sum"] for _ in range(2)]
    assert results == [64.0, 64.0]


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


def test_names_are_keras_paths_without_the_models_name() -> None:
    built = _build()
    names = set(built.variables)
    assert {
        "global_step",
        "body/dense/kernel",
        "body/norm/moving_mean",
        "head/kernel",
        "head/bias",
    } <= names


def test_slots_are_named_after_their_variable() -> None:
    built = _build()
    assert {"body/dense/kernel/Adam", "body/dense/kernel/Adam_1"} <= set(built.variables)
    with _session(built) as session:
        shapes = session.run([built.variables["head/kernel"], built.variables["head/kernel/Adam"]])
    assert shapes[0].shape == shapes[1].shape


def test_every_variable_has_a_spec_in_the_same_order() -> None:
    built = _build()
    assert [each.name for each in built.specs] == list(built.variables)
    every = built.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    assert {each.ref() for each in built.variables.values()} == {each.ref() for each in every}
    specs = {each.name: each for each in built.specs}
    kernel = specs["body/dense/kernel"]
    assert (kernel.tensor.shape, kernel.tensor.dtype) == ((8, 4), "float32")
    assert kernel.initializer == "StatelessRandomUniformV2"
    assert (kernel.trainable, kernel.frozen) == (True, False)
    assert specs["body/dense/bias"].initializer == "Const"
    states = {name: each.state for name, each in specs.items()}
    assert states["body/dense/kernel"] is StateClass.WEIGHT
    assert states["body/norm/moving_mean"] is StateClass.BATCH_NORM
    assert not specs["body/norm/moving_mean"].trainable
    assert states["body/dense/kernel/Adam"] is StateClass.OPTIMIZER_SLOT
    assert states["beta1_power"] is StateClass.OPTIMIZER_SLOT
    assert states["global_step"] is StateClass.GLOBAL_STEP


def _frozen(include: list[str]) -> RunConfig:
    return tiny(scaffolds={"part": ScaffoldConfig(VariablesConfig(include), trainable=False)})


def test_frozen_variables_get_no_gradient() -> None:
    built = _build(_frozen(["body/*"]))
    assert built.training is not None
    with _session(built) as session:
        kernels = [built.variables["body/dense/kernel"], built.variables["head/kernel"]]
        before = session.run(kernels)
        for _ in range(3):
            session.run(built.training.train_op)
        after = session.run(kernels)
    assert np.array_equal(before[0], after[0])
    assert not np.allclose(before[1], after[1])
    assert "body/dense/kernel/Adam" not in built.variables
    specs = {each.name: each for each in built.specs}
    assert (specs["body/dense/kernel"].trainable, specs["body/dense/kernel"].frozen) == (
        False,
        True,
    )
    assert not specs["body/norm/moving_mean"].frozen


def test_something_must_be_left_to_train() -> None:
    with pytest.raises(ConfigError, match="no variable is left to train"):
        _build(_frozen(["*"]))


def test_two_builds_give_the_same_names_and_initial_values() -> None:
    first = _build()
    with _session(first) as session:
        values = session.run(dict(first.variables))
    second = _build()
    assert list(second.variables) == list(first.variables)
    assert second.specs == first.specs
    with _session(second) as session:
        again = session.run(dict(second.variables))
    for name in values:
        assert np.array_equal(values[name], again[name]), name


def test_another_seed_gives_other_initial_values() -> None:
    kernels = []
    for seed in (0, 1):
        built = _build(tiny(seed=seed))
        with _session(built) as session:
            kernels.append(session.run(built.variables["head/kernel"]))
    assert not np.allclose(*kernels)


def _losses(built: BuiltGraph, session: tf.Session, steps: int) -> list[float]:
    assert built.training is not None
    fetches = (built.training.values["loss"], built.training.train_op)
    return [float(session.run(fetches)[0]) for _ in range(steps)]


def test_a_restored_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """The same batches, masks and slots: the losses agree to the last digit."""
    built = _build()
    prefix = str(tmp_path / "model.ckpt")
    with _session(built) as session:
        _losses(built, session, 5)
        built.saver.save(session, prefix, write_meta_graph=False)
        uninterrupted = _losses(built, session, 12)  # Past the end of an epoch of 8 batches.
    again = _build()
    with again.graph.as_default(), tf.Session() as session:
        again.saver.restore(session, prefix)
        assert _losses(again, session, 12) == uninterrupted


def test_without_the_input_state_the_batches_would_repeat(tmp_path: Path) -> None:
    """That the test above can fail: from the input's beginning other batches come."""
    built = _build()
    assert built.training is not None
    prefix = str(tmp_path / "model.ckpt")
    with _session(built) as session:
        _losses(built, session, 5)
        built.saver.save(session, prefix, write_meta_graph=False)
        uninterrupted = _losses(built, session, 3)
        built.saver.restore(session, prefix)
        session.run(built.training.input_initializer)
        assert _losses(built, session, 3) != uninterrupted


def test_step_is_read_after_the_train_op() -> None:
    built = _build()
    assert built.training is not None
    with _session(built) as session:
        assert [int(session.run(built.training.step)) for _ in range(3)] == [1, 2, 3]


def test_a_metric_that_is_nan_does_not_reach_the_gradients() -> None:
    built = _build(tiny(metrics={"undefined": {"_target_": f"{HERE}.Undefined"}}))
    assert built.training is not None
    with _session(built) as session:
        for _ in range(2):
            session.run(built.training.train_op)
        values = session.run(built.training.values)
    assert np.isfinite(values["loss"])
    assert np.isnan(values["undefined"])


def test_regularisation_is_part_of_the_loss() -> None:
    built = _build(tiny(model={"_target_": f"{HERE}.Regularised"}, metrics={}))
    assert built.training is not None
    with _session(built) as session:
        batch_loss = session.run(built.training.values["loss"])
        loss = evaluate(session, built.split)["loss"]
    assert batch_loss > 100
    assert loss > 100


def test_an_evaluation_graph_restores_what_training_saved(tmp_path: Path) -> None:
    built = _build()
    prefix = str(tmp_path / "model.ckpt")
    with _session(built) as session:
        _losses(built, session, 5)
        built.saver.save(session, prefix, write_meta_graph=False)
        expected = evaluate(session, built.split)
    other = build_graph(tiny(), "validation", train=False)
    assert other.training is None
    assert not any("Adam" in name for name in other.variables)
    with other.graph.as_default(), tf.Session() as session:
        other.saver.restore(session, prefix)
        assert evaluate(session, other.split) == expected


def test_the_test_split_is_another_one() -> None:
    assert build_graph(tiny(), "test", train=False).split.name == "test"


def test_features_and_labels_may_be_structures() -> None:
    config = tiny(
        data={"_target_": f"{HERE}.Structured"},
        model={"_target_": f"{HERE}.OfStructure"},
        loss={"_target_": f"{HERE}.StructuredLoss"},
        metrics={},
    )
    built = _build(config)
    with _session(built) as session:
        assert evaluate(session, built.split)["loss"] == pytest.approx(0.25)


def test_a_model_may_be_a_plain_callable() -> None:
    built = _build(tiny(model={"_target_": f"{HERE}.PlainModel"}))
    with _session(built) as session:
        before = session.run(built.variables["plain"])
        assert built.training is not None
        session.run(built.training.train_op)
        assert not np.allclose(session.run(built.variables["plain"]), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"_target_": f"{HERE}.NoTest"}}, r"data: .*NoTest has no test"),
        ({"data": {"_target_": f"{HERE}.NoLabels"}}, r"data\.train\(\) gives TensorSpec"),
        ({"data": {"_target_": f"{HERE}.NotADataset"}}, r"data\.train\(\) gives list"),
        (
            {"model": {"_target_": f"{HERE}.Twins"}},
            "two variables of the model are named same/kernel",
        ),
        (
            {"optimizer": {"_target_": "keras.optimizers.Adam"}},
            r"keras\.optimizers\.Adam is not a tf\.compat\.v1\.train\.Optimizer",
        ),
    ],
)
def test_what_breaks_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _build(tiny(**changes))


def test_build_data_gives_the_experiments_object() -> None:
    assert build_data(tiny()).batch_size == 8  # type: ignore[attr-defined]


def test_a_partitioned_variable_is_one_to_patterns_and_checkpoints(tmp_path: Path) -> None:
    scaffold = ScaffoldConfig(VariablesConfig(["head/kernel"]), learning_rate_multiplier=0.5)
    built = _build(tiny(model={"_target_": f"{HERE}.make_partitioned"}, scaffolds={"h": scaffold}))
    specs = {each.name: each for each in built.specs}
    parts = [specs[f"head/kernel/part_{number}"] for number in (0, 1)]
    assert [each.full_name for each in parts] == ["head/kernel"] * 2
    assert [each.full_shape for each in parts] == [(8, 2)] * 2
    assert [each.partition.offset for each in parts if each.partition] == [(0, 0), (4, 0)]
    assert specs["head/kernel/part_1/Adam"].full_name == "head/kernel/Adam"
    with _session(built) as session:
        prefix = built.saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor("head/kernel").shape == (8, 2)
    assert reader.get_tensor("head/kernel/Adam").shape == (8, 2)
