"""The Estimator, driven from Python as TensorFlow's was."""

from __future__ import annotations

import inspect
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner import estimator
from runner.cluster.local import free_addresses
from runner.estimator.results import write_summaries
from tests.tiny.programs import classified, counting, dense
from tests.tiny.runs import written


def held_out() -> tf.data.Dataset:
    return counting(seed=1, count=32, repeat=False)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
    hidden = dense(tf.reshape(tf.one_hot(features, 4), [-1, 16]), params["units"], "hidden")
    logits = dense(tf.nn.relu(hidden), 4, "logits")
    return classified(logits, labels, mode, tf.train.AdamOptimizer(0.01))


def estimator_in(folder: Path, **arguments: Any) -> estimator.Estimator:
    config = estimator.RunConfig(
        tf_random_seed=1, save_checkpoints_steps=10, save_summary_steps=10, keep_checkpoint_max=2
    )
    return estimator.Estimator(model_fn, folder, config, {"units": 4}, **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained for 20 steps."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    estimator_in(folder).train(counting, steps=20)
    return folder


def test_what_training_leaves(folder: Path) -> None:
    trained = estimator_in(folder)
    assert trained.latest_checkpoint() == str(folder / "model.ckpt-20")
    assert {path.name for path in folder.glob("*.index")} == {
        "model.ckpt-10.index",
        "model.ckpt-20.index",
    }
    assert {"hidden/kernel", "logits/bias/Adam"} <= set(trained.get_variable_names())
    assert trained.get_variable_value("hidden/kernel").shape == (16, 4)
    assert {"loss", "train_accuracy", "global_step/sec"} >= set(written(folder)) >= {"loss"}
    assert trained.train(counting, max_steps=20).latest_checkpoint() == trained.latest_checkpoint()


def test_evaluations_and_predictions(folder: Path) -> None:
    trained = estimator_in(folder)
    metrics = trained.evaluate(held_out, name="held")
    assert set(metrics) == {"loss", "accuracy", "global_step"}
    assert metrics["global_step"] == 20
    some = list(trained.predict(lambda: held_out().map(lambda x, y: x), "class"))
    assert len(some) == 32
    assert set(some[0]) == {"class"}
    labels = np.concatenate([labels for _, labels in held_out().as_numpy_iterator()])
    right = np.mean([example["class"] for example in some] == labels)
    assert right == pytest.approx(metrics["accuracy"])
    (batch, _) = trained.predict(held_out, yield_single_examples=False)
    assert batch["probabilities"].shape == (16, 4)
    one = trained.evaluate(held_out, steps=1, checkpoint_path=str(folder / "model.ckpt-10"))
    assert one["global_step"] == 10
    with pytest.raises(ValueError, match="Expected to run at least one output from"):
        next(trained.predict(held_out, "clas"))


def test_every_evaluation_is_written_however_quickly_they_follow(tmp_path: Path) -> None:
    for step in range(8):
        write_summaries(
            str(tmp_path), {"loss": np.float32(step), "global_step": np.int64(step)}, None
        )
    assert written(tmp_path)["loss"] == [(step, float(step)) for step in range(8)]


def test_an_export_is_served(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a")

    def receiver_fn() -> Any:
        tokens = tf.placeholder(tf.int32, [None, 4], "tokens")
        return estimator.export.TensorServingInputReceiver(tokens, {"tokens": tokens})

    path = estimator_in(folder).export_saved_model(
        tmp_path / "export", receiver_fn, assets_extra={"words.txt": str(tmp_path / "words")}
    )
    assert Path(path.decode()).name.isdigit()
    assert Path(path.decode(), "assets.extra", "words.txt").read_text() == "a"
    served = tf.saved_model.load_v2(path.decode()).signatures["serving_default"]
    assert served(tokens=tf.constant(np.zeros([2, 4], np.int32)))["class"].shape == [2]
    assert list((tmp_path / "export").iterdir()) == [Path(path.decode())]


def test_train_and_evaluate_exports_after_each_evaluation(tmp_path: Path) -> None:
    receiver = estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, 4], tf.int32)}
    )

    def by_name(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
        return model_fn(features["x"], labels, mode, params)

    def named(repeat: bool = True) -> tf.data.Dataset:
        return counting(repeat=repeat).map(lambda x, y: ({"x": x}, y))

    class Finals(estimator.Exporter):
        """Notes which of the evaluations was the final one."""

        name = "finals"
        seen: ClassVar[list[bool]] = []

        def export(
            self,
            estimator: Any,
            export_path: str,
            checkpoint_path: str,
            eval_result: Any,
            is_the_final_export: bool,
        ) -> None:
            self.seen.append(is_the_final_export)

    config = estimator.RunConfig(save_checkpoints_steps=5)
    trained = estimator.Estimator(by_name, str(tmp_path), config, {"units": 2})
    exporters = [
        estimator.FinalExporter("final", receiver),
        estimator.BestExporter("best", receiver),
        Finals(),
    ]
    metrics, exported = estimator.train_and_evaluate(
        trained,
        estimator.TrainSpec(named, max_steps=10),
        estimator.EvalSpec(lambda: named(repeat=False), None, exporters=exporters, throttle_secs=0),
    )
    assert metrics is not None
    assert metrics["global_step"] == 10
    assert Finals.seen == [False, True], "each checkpoint is evaluated once"
    assert exported[0].startswith(str(tmp_path / "export" / "final").encode())
    assert len(list((tmp_path / "export" / "final").iterdir())) == 1
    assert len(list((tmp_path / "export" / "best").iterdir())) >= 1
    again = estimator.train_and_evaluate(
        trained, estimator.TrainSpec(named, max_steps=10), estimator.EvalSpec(named)
    )
    assert again == (None, [])


def test_a_warm_start_renames_and_selects(folder: Path, tmp_path: Path) -> None:
    def renamed(features: Any, labels: Any, mode: str) -> estimator.EstimatorSpec:
        hidden = dense(tf.reshape(tf.one_hot(features, 4), [-1, 16]), 4, "body")
        logits = dense(tf.nn.relu(hidden), 4, "head")
        return classified(logits, labels, mode, tf.train.GradientDescentOptimizer(0.0))

    settings = estimator.WarmStartSettings(
        str(folder), "body/kernel", var_name_to_prev_var_name={"body/kernel": "hidden/kernel"}
    )
    started = estimator.Estimator(renamed, tmp_path, warm_start_from=settings)
    started.train(counting, steps=1)
    source = estimator_in(folder).get_variable_value("hidden/kernel")
    np.testing.assert_array_equal(started.get_variable_value("body/kernel"), source)


def test_what_tensorflow_allowed_a_model_fn(folder: Path, tmp_path: Path) -> None:
    def model_fn(features: Any) -> estimator.EstimatorSpec:
        """Takes no mode, and has a device, a nested metric, an image and local state of its own."""
        with tf.device("/gpu:0"):
            weight = tf.get_variable("hidden/bias", [4])
        total = tf.get_local_variable("total", initializer=0)
        start = tf.group(tf.local_variables_initializer(), tf.tables_initializer())
        with tf.control_dependencies([start]):
            start = tf.group(tf.assign(total, 5))
        image = tf.summary.image("image", tf.zeros([2, 3, 3, 1]))
        metrics = {"nested": ((total, tf.constant(3.0)), tf.no_op()), "shown": (image, tf.no_op())}
        return estimator.EstimatorSpec(
            None,
            {"weight": tf.expand_dims(weight, 0)},
            tf.reduce_sum(weight) + tf.reduce_sum(features["x"]),
            tf.assign_add(tf.train.get_global_step(), 1),
            eval_metric_ops={**metrics, "vector": (tf.constant([1.0, 2.0]), tf.no_op())},
            scaffold=tf.train.Scaffold(local_init_op=start),
        )

    config = estimator.RunConfig()
    config.mine = "kept"
    trained = estimator.Estimator(model_fn, tmp_path, config, warm_start_from=str(folder))
    assert trained.config.mine == "kept"  # type: ignore[attr-defined]
    receiver = estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1])})
    path = trained.export_saved_model(tmp_path / "export", receiver)
    served = tf.saved_model.load_v2(path.decode()).signatures["serving_default"]
    source = estimator_in(folder).get_variable_value("hidden/bias")
    np.testing.assert_array_equal(served(x=tf.zeros([1]))["weight"][0], source)

    def input_fn() -> Any:
        return {"x": tf.constant([0.0])}

    trained.train(input_fn, steps=1)
    values = trained.evaluate(input_fn, steps=1)
    assert values["nested"] == (5, 3.0)
    names = {"loss", "vector", "shown/0", "shown/1", "checkpoint_path"}
    events = next((tmp_path / "eval").iterdir())
    summaries = [event.summary.value for event in tf.train.summary_iterator(str(events))]
    assert {value.tag for values in summaries for value in values} == names
    assert list(inspect.signature(trained.model_fn).parameters) == [
        "features",
        "labels",
        "mode",
        "config",
    ]


def test_params_of_any_class_and_further_arguments(tmp_path: Path) -> None:
    params = SimpleNamespace(rate=0.5)  # In place of an HParams.

    def model_fn(features: Any, mode: str, params: Any, **unused: Any) -> estimator.EstimatorSpec:
        weight = tf.get_variable("weight", [])
        train_op = tf.group(
            tf.assign(weight, params.rate), tf.assign_add(tf.train.get_global_step(), 1)
        )
        params.rate = 1.0  # Of a copy.
        return estimator.EstimatorSpec(mode, loss=weight * features, train_op=train_op)

    trained = estimator.Estimator(model_fn, tmp_path, params=params)
    trained.train(lambda: tf.constant(1.0), steps=1)
    assert trained.get_variable_value("weight") == trained.params.rate == params.rate == 0.5


def test_wrong_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = estimator_in(folder)
    with pytest.raises(ValueError, match="Can not provide both steps and max_steps"):
        trained.train(counting, steps=1, max_steps=1)
    with pytest.raises(ValueError, match="Must specify steps > 0, given: 0"):
        trained.evaluate(counting, steps=0)
    with pytest.raises(ValueError, match="An input_receiver_fn must be defined"):
        trained.export_saved_model(folder, None)
    with pytest.raises(ValueError, match="Could not find trained model in model_dir"):
        estimator_in(folder / "empty").get_variable_names()
    with pytest.raises(ValueError, match="does not include params argument"):
        estimator.Estimator(lambda features: None, params={"a": 1})
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor"):
        estimator.Estimator(model_fn, "a", estimator.RunConfig("b"), {})
    with pytest.raises(TypeError, match="Expected binary or unicode string, got 1"):
        estimator_in(folder, warm_start_from=1)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}')
    with pytest.raises(ValueError, match='must have one "chief" node'):
        estimator_in(folder)
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator"}}')
    with pytest.raises(ValueError, match="Train has been called wrong configuration"):
        estimator_in(folder).train(counting, steps=1)


def test_paths_are_strings_or_bytes(folder: Path, tmp_path: Path) -> None:
    receiver = estimator.export.build_raw_serving_input_receiver_fn(
        {"tokens": tf.TensorSpec([None, 4], tf.int32)}
    )

    def by_name(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
        return model_fn(features["tokens"], labels, mode, params)

    trained = estimator.Estimator(by_name, os.fsencode(folder), params={"units": 4})
    path = trained.export_savedmodel(os.fsencode(tmp_path), receiver, strip_default_attrs=True)
    assert path.startswith(os.fsencode(tmp_path))
    assert (Path(os.fsdecode(path)) / "saved_model.pb").is_file()


def test_metrics_may_be_strings(folder: Path) -> None:
    def named(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode, params)
        label = (tf.constant("not a summary"), tf.no_op())
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, "label": label})

    trained = estimator.Estimator(named, str(folder), params={"units": 4})
    assert trained.evaluate(held_out, name="strings")["label"] == b"not a summary"
    assert list((folder / "eval_strings").glob("events.*"))


def test_sparse_features_and_labels(tmp_path: Path) -> None:
    def sparse_fn(features: Any, labels: Any, mode: str) -> estimator.EstimatorSpec:
        summed = tf.reshape(tf.sparse.reduce_sum(features["x"], 1), [2, 1])
        predictions = dense(summed, 1, "sum")
        loss = tf.reduce_mean((predictions - tf.sparse.to_dense(labels)) ** 2)
        train = tf.train.GradientDescentOptimizer(0.0).minimize(loss, tf.train.get_global_step())
        return estimator.EstimatorSpec(mode, predictions, loss, train)

    def inputs() -> tf.data.Dataset:
        sparse = tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]])
        return tf.data.Dataset.from_tensors(({"x": sparse}, sparse)).repeat(3)

    trained = estimator.Estimator(sparse_fn, str(tmp_path)).train(inputs, steps=2)
    assert trained.evaluate(inputs)["global_step"] == 2


class Steps(tf.train.SessionRunHook):
    """Counts the steps of one task, and waits after the first one for another task's first."""

    def __init__(self, other: Steps | None = None) -> None:
        self.count, self.begun, self.other = 0, threading.Event(), other

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.count += 1
        self.begun.set()
        if self.other is not None:
            self.other.begun.wait(60)


def test_train_and_evaluate_in_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chief, worker, ps = free_addresses(3)
    cluster = {"chief": [chief], "worker": [worker], "ps": [ps]}
    server = tf.distribute.Server(cluster, job_name="ps", task_index=0)
    workers = Steps()
    everywhere = {"chief": Steps(workers), "worker": workers}
    chief_only = {kind: Steps() for kind in ("chief", "worker")}
    results: dict[str, Any] = {}

    def in_task(kind: str) -> threading.Thread:
        task = {"cluster": cluster, "task": {"type": kind, "index": 0}, "model_dir": str(tmp_path)}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))

        def hooked(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
            spec = model_fn(features, labels, mode, params)
            return spec._replace(training_chief_hooks=[chief_only[kind]] if mode == "train" else ())

        config = estimator.RunConfig(
            save_checkpoints_steps=20, experimental_max_worker_delay_secs=0, tf_random_seed=1
        )
        trained = estimator.Estimator(hooked, config=config, params={"units": 2})
        hooks = [everywhere[kind]] if kind in everywhere else []
        train = estimator.TrainSpec(counting, max_steps=40, hooks=hooks)
        evaluate = estimator.EvalSpec(held_out, start_delay_secs=0, throttle_secs=0)

        def run() -> None:
            results[kind] = estimator.train_and_evaluate(trained, train, evaluate)

        thread = threading.Thread(target=run, name=kind)
        thread.start()
        return thread

    threads = [in_task("chief"), in_task("evaluator")]
    everywhere["chief"].begun.wait(60)  # A worker that comes too early waits for 30 seconds.
    for thread in [*threads, in_task("worker")]:
        thread.join(60)
    assert server.target
    metrics, _ = results["evaluator"]
    assert metrics["global_step"] >= 40
    assert results["chief"] == results["worker"] == (None, [])
    assert everywhere["worker"].count > 0
    assert everywhere["chief"].count == chief_only["chief"].count > 0
    assert chief_only["worker"].count == 0


def test_a_parameter_server_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "ps": ["b:1"]}
    task = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))

    class Joined(Exception):  # noqa: N818
        """Raised where a server would serve for ever."""

    class Server:
        def __init__(self, spec: Any, **task: Any) -> None:
            assert (task["job_name"], task["task_index"]) == ("ps", 0)

        def join(self) -> None:
            raise Joined

    monkeypatch.setattr("tensorflow.distribute.Server", Server)
    serving = estimator.Estimator(model_fn, params={"units": 2})
    with pytest.raises(Joined):
        estimator.train_and_evaluate(
            serving, estimator.TrainSpec(counting), estimator.EvalSpec(held_out)
        )


def constant_fn(features: Any, labels: Any, mode: str) -> estimator.EstimatorSpec:
    """A model that does not learn: its loss stays what it is."""
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    train = tf.train.GradientDescentOptimizer(0.0).minimize(weight, tf.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=weight, train_op=train)


@pytest.mark.parametrize(
    ("hook", "limit", "step"),
    [
        ("stop_if_no_decrease_hook", 10, 20),
        ("stop_if_no_increase_hook", 20, 30),
        ("stop_if_higher_hook", 0.5, 10),
        ("stop_if_lower_hook", 0.5, 40),
    ],
)
def test_a_metric_ends_training(tmp_path: Path, hook: str, limit: float, step: int) -> None:
    config = estimator.RunConfig(save_checkpoints_steps=5, log_step_count_steps=None)
    trained = estimator.Estimator(constant_fn, tmp_path, config)
    experimental = estimator.experimental
    stop = getattr(experimental, hook)(
        trained, "loss", limit, min_steps=10, run_every_secs=None, run_every_steps=1
    )
    memory = experimental.InMemoryEvaluatorHook(trained, held_out, 1, every_n_iter=10)
    trained.train(counting, hooks=[memory, stop], max_steps=40)
    metrics = experimental.read_eval_metrics(trained.eval_dir())
    end = trained.get_variable_value("global_step")
    assert end in (step, step + 1)
    assert metrics == {due: {"loss": 1.0} for due in (*range(0, step + 1, 10), end)}


def test_a_cluster_of_one_node_trains_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    metrics, _ = estimator.train_and_evaluate(
        estimator_in(tmp_path),
        estimator.TrainSpec(counting, max_steps=10),
        estimator.EvalSpec(held_out, throttle_secs=0),
    )
    assert metrics is not None
    assert metrics["global_step"] == 10
