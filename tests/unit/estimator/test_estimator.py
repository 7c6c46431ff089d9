"""The original Estimator on this TensorFlow, and what runner adds to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner
from runner import estimator
from runner.cluster.local import free_addresses
from runner.errors import ConfigError, PlanError
from tests.samples.programs import classified, counting, dense
from tests.support.runs import written


def held_out() -> tf.data.Dataset:
    return counting(seed=1, count=32, repeat=False)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
    hidden = dense(tf.reshape(tf.one_hot(features, 4), [-1, 16]), params["units"], "hidden")
    logits = dense(tf.nn.relu(hidden), 4, "logits")
    return classified(logits, labels, mode, tf.train.AdamOptimizer(0.01))


def estimator_in(folder: Path, **arguments: Any) -> Any:
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


def test_an_export_is_served(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a")

    def receiver_fn() -> Any:
        tokens = tf.placeholder(tf.int32, [None, 4], "tokens")
        return estimator.export.TensorServingInputReceiver(tokens, {"tokens": tokens})

    path = estimator_in(folder).export_saved_model(
        str(tmp_path / "export"), receiver_fn, assets_extra={"words.txt": str(tmp_path / "words")}
    )
    assert Path(path.decode()).name.isdigit()
    assert Path(path.decode(), "assets.extra", "words.txt").read_text() == "a"
    served = tf.saved_model.load_v2(path.decode()).signatures["serving_default"]
    assert served(tokens=tf.constant(np.zeros([2, 4], np.int32)))["class"].shape == [2]
    assert list((tmp_path / "export").iterdir()) == [Path(path.decode())]


def test_train_and_evaluate_exports_after_each_evaluation(tmp_path: Path) -> None:
    receiver = estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.zeros([1, 4], tf.int32)}
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
    assert again == (None, None)


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
    assert dict.fromkeys(results) == {"chief": None, "worker": None, "evaluator": None}
    assert written(tmp_path / "eval")["accuracy"][-1][0] >= 40
    assert everywhere["worker"].count > 0
    assert everywhere["chief"].count == chief_only["chief"].count > 0
    assert chief_only["worker"].count == 0


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
    metrics = written(Path(trained.eval_dir()))["loss"]
    end = trained.get_variable_value("global_step")
    assert end in (step, step + 1)
    assert metrics == [(due, 1.0) for due in (*range(0, step + 1, 10), end)]


# Runner's additions.


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", logger="tensorflow")
    return caplog


def two_parts(features: Any, labels: Any, mode: str) -> Any:
    """A model whose parts were trained elsewhere, under other names."""
    started = tf.get_local_variable("started", initializer=0)
    body = dense(tf.reshape(tf.one_hot(features, 4), [-1, 16]), 4, "body")
    logits = dense(tf.nn.relu(body), 4, "head")
    spec = classified(logits, labels, mode, tf.train.GradientDescentOptimizer(0.0))
    del started
    return spec


def parts(folder: Path, **of_body: Any) -> dict[str, Any]:
    """Scaffolds that start the two parts, from two checkpoints."""
    body = {"variables": {"include": ["body/*"]}, "rename": {"body/": "hidden/"}, **of_body}
    head = {"variables": {"include": ["head/*"]}, "rename": {"head/": "logits/"}}
    return {
        "body": {"checkpoint": str(folder / "model.ckpt-10"), **body},
        "head": {"checkpoint": str(folder), **head},
    }


def test_several_checkpoints_start_a_model_and_the_plan_is_logged(
    folder: Path, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    started = estimator.Estimator(two_parts, str(tmp_path), warm_start_from=parts(folder))
    assert started.evaluate(held_out)["global_step"] == 0
    (before,) = started.predict(lambda: held_out().take(1), yield_single_examples=False)
    started.train(counting, steps=1)
    for step, names in ((10, ("body", "hidden")), (20, ("head", "logits"))):
        variable, tensor = (f"{name}/kernel" for name in names)
        saved = tf.train.load_variable(str(folder / f"model.ckpt-{step}"), tensor)
        np.testing.assert_array_equal(started.get_variable_value(variable), saved)
    (after,) = started.predict(lambda: held_out().take(1), yield_single_examples=False)
    np.testing.assert_array_equal(before["probabilities"], after["probabilities"])
    plans = [line for line in logged.messages if line.startswith("Warm-starting from body, head")]
    assert len(plans) == 3, "none is planned once there is a checkpoint"
    assert "hidden/kernel" in plans[0]
    started.train(counting, steps=1)
    assert started.get_variable_value("global_step") == 2


def test_an_init_fn_runs_before_the_warm_start(folder: Path, tmp_path: Path) -> None:
    seen: list[float] = []

    def with_init_fn(features: Any, labels: Any, mode: str) -> Any:
        spec = two_parts(features, labels, mode)
        (bias,) = (v for v in tf.trainable_variables() if v.op.name == "body/bias")

        def init_fn(scaffold: Any, session: tf.Session) -> None:
            seen.append(float(session.run(tf.reduce_sum(bias.read_value()))))

        scaffold = tf.train.Scaffold(init_fn=lambda scaffold, session: seen.append(0.0))
        return spec._replace(scaffold=scaffold)

    started = estimator.Estimator(with_init_fn, str(tmp_path), warm_start_from=parts(folder))
    started.train(counting, steps=1)
    assert seen == [0.0]
    source = tf.train.load_variable(str(folder / "model.ckpt-10"), "hidden/bias")
    np.testing.assert_array_equal(started.get_variable_value("body/bias"), source)


def test_a_plan_with_problems_ends_it_before_a_step(folder: Path, tmp_path: Path) -> None:
    wrong = parts(folder, rename={"body/": "hiden/"})
    started = estimator.Estimator(two_parts, str(tmp_path), warm_start_from=wrong)
    with pytest.raises(PlanError, match="no tensors for 2 variables, body/kernel, body/bias"):
        started.train(counting, steps=1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="chekpoint"):
        estimator.Estimator(two_parts, warm_start_from={"body": {"chekpoint": str(folder)}})


def test_what_an_estimator_does_not_do_with_scaffolds_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"scaffolds\.body\.trainable is false"):
        estimator.Estimator(two_parts, warm_start_from=parts(folder, trainable=False))
    config = estimator.RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    with pytest.raises(ConfigError, match="several checkpoints and a distribution strategy"):
        estimator.Estimator(two_parts, config=config, warm_start_from=parts(folder))


def test_it_trains_in_runners_session(tmp_path: Path) -> None:
    sessions: list[Any] = []

    class Noting(tf.train.SessionRunHook):
        def after_create_session(self, session: tf.Session, coord: Any) -> None:
            sessions.append(session)

    estimator_in(tmp_path).train(counting, steps=1, hooks=[Noting()])
    assert [type(session) for session in sessions] == [runner.CachedSession]


def test_a_subclass_may_add_members_and_override_none() -> None:
    class Extends(estimator.Estimator):
        def train_twice(self) -> None: ...

    class Overrides(estimator.Estimator):
        def train(self) -> None: ...

    with pytest.raises(AttributeError, match="Please use `export_saved_model`"):
        _ = Extends(constant_fn).export_savedmodel
    with pytest.raises(ValueError, match=r"cannot override members of Estimator.*train"):
        Overrides(constant_fn)


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}
WRONG_TASKS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no task": (CLUSTER, None, "task type must be set"),
    "no type": (CLUSTER, {"index": 0}, "task type must be set"),
    "no index": (CLUSTER, {"type": "worker"}, "task index must be set"),
    "a negative index": (CLUSTER, {"type": "worker", "index": -1}, "must be non-negative"),
    "an index too large": (CLUSTER, {"type": "worker", "index": 2}, "not a valid task_id"),
    "an unknown type": (CLUSTER, {"type": "boss", "index": 0}, "boss is not a valid task_type"),
    "two chiefs": (
        {**CLUSTER, "chief": ["a:1", "a:2"]},
        {"type": "chief", "index": 0},
        'only one "chief" node',
    ),
    "chief and master": (
        {**CLUSTER, "master": ["d:1"]},
        {"type": "chief", "index": 0},
        "job `chief` is not supported",
    ),
    "no chief": ({"worker": ["b:1", "b:2"]}, {"type": "worker", "index": 0}, 'one "chief" node'),
}


@pytest.mark.parametrize("name", WRONG_TASKS)
def test_a_wrong_task_of_a_cluster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, task, message = WRONG_TASKS[name]
    content = {"cluster": cluster} | ({} if task is None else {"task": task})
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))
    with pytest.raises(ValueError, match=message):
        estimator.RunConfig()


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
def test_a_strategy_trains_in_one_process(tmp_path: Path) -> None:
    config = estimator.RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    trained = estimator.Estimator(constant_fn, str(tmp_path), config)
    trained.train(counting, steps=2)
    assert trained.get_variable_value("global_step") == 2


CANNED = """
import numpy as np, tensorflow as tf
from runner import estimator
x = tf.feature_column.numeric_column("x", [4])
def data():
    features = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    labels = (features.sum(1) > 0).astype("int32")
    return tf.data.Dataset.from_tensor_slices(({"x": features}, labels)).batch(16).repeat(20)
for kind in (estimator.DNNClassifier, estimator.LinearClassifier):
    arguments = {"optimizer": tf.keras.optimizers.legacy.Adam(0.05)}
    if kind is estimator.DNNClassifier:
        arguments["hidden_units"] = [8]
    trained = kind(feature_columns=[x], **arguments)
    trained.train(data, steps=60)
    assert trained.evaluate(data, steps=4)["accuracy"] > 0.7, kind
"""


@pytest.mark.soak
def test_canned_estimators_train_with_tf_keras() -> None:
    environ = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CANNED], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
