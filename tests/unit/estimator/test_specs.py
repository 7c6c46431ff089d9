"""The classes of `tf.estimator` by their fields: what each accepts, and TensorFlow's messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from runner.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    ModeKeys,
    RunConfig,
    TrainSpec,
    WarmStartSettings,
    export,
    train_and_evaluate,
)
from runner.estimator.results import examples


def scalar() -> tf.Tensor:
    return tf.constant(1.0, name="here")


HERE = object()  # Stands for a tensor of the default graph.
SPECS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("train", {"loss": HERE}, ValueError, "Missing train_op"),
    ("train", {"train_op": HERE}, ValueError, "Missing loss"),
    ("eval", {}, ValueError, "Missing loss"),
    ("infer", {}, ValueError, "Missing predictions"),
    ("infer", {"predictions": HERE, "export_outputs": []}, TypeError, "outputs` must be dict"),
    ("infer", {"predictions": HERE, "export_outputs": {"a": HERE}}, TypeError, "be ExportOutput"),
]


@pytest.mark.parametrize(("mode", "fields", "kind", "message"), SPECS)
def test_a_wrong_field_of_a_spec(
    mode: str, fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    def with_tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: with_tensors(part) for name, part in value.items()}
        return scalar() if value is HERE else value

    with tf.Graph().as_default(), pytest.raises(kind, match=message):
        EstimatorSpec(mode, **with_tensors(fields))


def test_a_spec_is_what_tensorflow_made_of_it() -> None:
    with tf.Graph().as_default():
        predictions = {"a": scalar()}
        spec = EstimatorSpec(ModeKeys.PREDICT, predictions)
        assert spec.predictions == predictions
        assert list(spec.export_outputs) == ["serving_default"]
        assert spec.export_outputs["serving_default"].outputs == predictions
        assert spec.training_hooks == spec.evaluation_hooks == ()
        assert isinstance(spec.scaffold, tf.compat.v1.train.Scaffold)
        trained = EstimatorSpec("train", loss=tf.ones([1]), train_op=tf.no_op())
        assert trained.loss.shape == []
        assert trained.predictions == trained.eval_metric_ops == {}
        changed = trained._replace(loss=scalar())
        assert changed.loss.op.name == "here_1"
        assert changed.train_op is trained.train_op
        with pytest.raises(TypeError, match="unexpected keyword argument 'los'"):
            EstimatorSpec("eval", los=scalar())
        with pytest.raises(ValueError, match="Cannot reshape a tensor with 2 elements"):
            EstimatorSpec("eval", loss=tf.zeros([2]))
        two = {name: export.PredictOutput(scalar()) for name in ("a", "b")}
        with pytest.raises(ValueError, match="none of them are specified as the default"):
            EstimatorSpec("infer", scalar(), export_outputs=two)


NO_ESTIMATOR: Any = None


def nothing() -> None:
    return None


DUPLICATES = [FinalExporter("a", None), LatestExporter("a", None)]
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: evaluated(steps=0), ValueError, "Must specify steps > 0, given: 0"),
    (lambda: evaluated(exporters=DUPLICATES), ValueError, "must have unique names"),
    (
        lambda: RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
        ValueError,
        "cannot be both set",
    ),
    (lambda: RunConfig(keep_checkpoint_max=-1), ValueError, "keep_checkpoint_max should be >= 0"),
    (lambda: RunConfig(train_distribute=1), ValueError, "train_distribute is not supported"),
    (lambda: RunConfig().replace(steps=1), ValueError, "Replacing steps is not supported"),
    (lambda: list(examples({"a": [1, 2], "b": [1]})), ValueError, "is shorter than argument 1"),
]


def evaluated(**fields: Any) -> Any:
    """Calls `train_and_evaluate`; a mistake in the `EvalSpec` shows before training."""
    return train_and_evaluate(NO_ESTIMATOR, TrainSpec(nothing), EvalSpec(nothing, **fields))


@pytest.mark.parametrize(("make", "kind", "message"), WRONG)
def test_wrong_arguments_of_the_others(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = RunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.keep_checkpoint_max, config.log_step_count_steps) == (5, 100)
    steps = config.replace(save_checkpoints_steps=7)
    assert (steps.save_checkpoints_steps, steps.save_checkpoints_secs) == (7, None)
    assert (config.is_chief, config.task_type) == (True, "worker")
    assert (config.num_worker_replicas, config.num_ps_replicas) == (1, 0)
    assert EvalSpec(nothing)[1:] == (100, None, (), (), 120, 600)
    assert TrainSpec(nothing)[1:] == (None, (), ())
    assert WarmStartSettings("a") == ("a", ".*", {}, {})


def test_the_place_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "ps": ["b:1", "b:2"], "worker": ["c:1", "c:2", "c:3"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    config = RunConfig()
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 1, False)
    assert (config.num_ps_replicas, config.num_worker_replicas) == (2, 4)
    older = {"master": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}
    task = {"type": "master", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": older, "task": task}))
    config = RunConfig()
    assert (config.master, config.is_chief, config.num_worker_replicas) == ("grpc://a:1", True, 2)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"master": ["a:1"]}, "task": task}))
    assert (RunConfig().master, RunConfig().is_chief) == ("", True)


def test_the_model_dir_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"model_dir": "shared"}')
    assert RunConfig().model_dir == "shared"
    assert RunConfig(b"shared").model_dir == "shared"
    with pytest.raises(ValueError, match="must have the same value as the model_dir in TF_CONFIG"):
        RunConfig("mine")


def test_a_subclass_has_a_property_for_a_field() -> None:
    class Settings(RunConfig):
        @property
        def model_dir(self) -> str:
            return f"{self._model_dir}/sub"  # type: ignore[attr-defined]

    settings = Settings("a").replace(save_summary_steps=3)
    assert settings.model_dir == Estimator(nothing, config=settings).model_dir == "a/sub"
    assert Estimator(nothing, config=settings).config.model_dir == "a/sub"


def test_a_placeholder_of_unknown_rank() -> None:
    with tf.Graph().as_default():
        receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec(None)}, 2)
        assert receiver_fn().features["x"].shape.rank is None
        shape = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([1, 3])}, 2)
        assert shape().features["x"].shape.as_list() == [2, 3]


def test_receivers() -> None:
    with tf.Graph().as_default():
        one = export.TensorServingInputReceiver(scalar(), scalar())
        assert one.features.op.name == "here"
        assert list(one.receiver_tensors) == ["input"]
        raw = export.build_raw_serving_input_receiver_fn({"x": tf.zeros([3, 2])})()
        assert raw.features["x"].shape.as_list() == [None, 2]
        parsed = export.build_parsing_serving_input_receiver_fn(
            {"x": tf.io.FixedLenFeature([2], tf.float32)}
        )()
        assert list(parsed.receiver_tensors) == ["examples"]
        assert parsed.features["x"].shape.as_list() == [None, 2]
