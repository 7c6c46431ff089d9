from __future__ import annotations

import math
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import tensorflow as tf
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, Run
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from runner.errors import TrackingError
from runner.internals.mlflow import records_load_of_any_store
from runner.system.status import Status
from runner.tracking.encoding import Delivery, MetricPoint, Parameter, Tag, decode_key, encode_key
from runner.tracking.journal import Artifact, Dataset, Metrics, Parameters, Tags, Text
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.stored_runs import ExportedModel, Field
from tests.support.recorded_runs import identity, record, steps


@pytest.fixture
def mlflow_run(store: MlflowStore) -> MlflowRun:
    return store.find_or_create(identity("plain"), None, None)


# A run from start to end


def test_a_run_holds_everything_that_was_recorded(
    store: MlflowStore, client: MlflowClient, tmp_path: Path
) -> None:
    (tmp_path / "plan.txt").write_text("the plan")
    (tmp_path / "best" / "deep").mkdir(parents=True)
    (tmp_path / "best" / "deep" / "weights").write_bytes(b"\x00\x01")
    before = time.time_ns() // 1_000_000
    run_ = store.find_or_create(identity("digits", "digits-1", {"host": "here"}), None, "0" * 32)
    assert client.get_run(run_.run_id).info.status == "RUNNING"
    for delivery in run_.deliveries(
        [
            Parameters({"train.steps": "10", "name": "cnn", "goal": "None"}),
            Metrics({"loss": 0.5}, 1, 5),
            Metrics({"loss": 0.25}, 2, 6),
            Tags({"sources": "none"}),
            Artifact(tmp_path / "plan.txt", "plans"),
            Artifact(tmp_path / "best", "checkpoints"),
            Text("größe", "reports/report.txt"),
            Dataset("digits", "abc", "train", "digits.npz", {"examples": 100}),
        ]
    ):
        run_.deliver(delivery)
    run_.finish(Status.FINISHED, "")

    run = client.get_run(run_.run_id)
    assert run.info.run_name == "digits-1"
    assert run.info.status == "FINISHED"
    assert before <= run.info.start_time <= run.info.end_time <= time.time_ns() // 1_000_000
    assert run.data.params == {"train.steps": "10", "name": "cnn", "goal": "None"}
    assert run.data.metrics == {"loss": 0.25}
    assert steps(client, run_.run_id, "loss") == [1, 2]
    assert {
        "host": "here",
        "sources": "none",
        "mlflow.parentRunId": "0" * 32,
    }.items() <= run.data.tags.items()
    root = Path(client.download_artifacts(run_.run_id, ""))
    assert (root / "plans/plan.txt").read_text() == "the plan"
    assert (root / "checkpoints/best/deep/weights").read_bytes() == b"\x00\x01"
    assert (root / "reports/report.txt").read_text(encoding="utf-8") == "größe"
    assert run.inputs is not None
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("digits", "abc")
    assert data.dataset.profile == '{"examples": 100}'
    assert [(tag.key, tag.value) for tag in data.tags] == [("mlflow.data.context", "train")]


def test_status_and_times_are_those_that_were_given_and_the_start_is_the_first(
    store: MlflowStore, client: MlflowClient
) -> None:
    opened, start = replace(identity(), start_time=1_700_000_000_000), 1_700_000_000_000
    run_id = None
    for status, seconds in ((Status.KILLED, 1), (Status.FAILED, 5), (Status.FINISHED, 9)):
        end = start + 1000 * seconds
        run = store.find_or_create(opened, run_id, None)
        run_id = run.run_id
        run.finish(Status.RUNNING, "")
        assert client.get_run(run_id).info.status == "RUNNING"
        run.finish(status, "2 tags", end)
        found = client.get_run(run_id)
        assert (found.info.start_time, found.info.end_time) == (start, end)
        assert found.info.status == status.value
    assert found.data.tags["runner.not_delivered"] == "2 tags"


def test_more_than_one_request_holds_arrives_whole(
    store: MlflowStore, client: MlflowClient
) -> None:
    run_id = record(
        store,
        Parameters({f"p{index}": str(index) for index in range(101)}),
        Tags({f"t{index}": "1" for index in range(101)}),
        *(Metrics({"loss": float(step), "accuracy": 0.5}, step, 0) for step in range(501)),
        tags={f"first{index}": "1" for index in range(101)},
    )
    run = client.get_run(run_id)
    assert len(run.data.params) == 101
    assert len([tag for tag in run.data.tags if tag[0] in "tf" and tag[-1].isdigit()]) == 202
    for key in ("loss", "accuracy"):
        assert steps(client, run_id, key) == list(range(501))


def test_names_and_values_of_any_kind_arrive(store: MlflowStore, client: MlflowClient) -> None:
    names = ["f(x)=1", "größe", "a//b", "../up", "🎯", "tab\t", "100%", '["a.b"]', "k" * 300]
    run_id = record(
        store,
        Parameters(dict.fromkeys(names, "v" * 7000)),
        Metrics({**dict.fromkeys(names, 1.0), "nan": math.nan, "inf": math.inf}, 1, 0),
        Tags(dict.fromkeys(names, "v" * 9000)),
        tags={"tag @ start": "'quoted' \x00"},
    )
    run = client.get_run(run_id)
    for held in (run.data.params, run.data.metrics, run.data.tags):
        assert set(names[:-1]) <= {decode_key(key) for key in held}
        assert any(key.startswith("kkk") and len(key) == 250 for key in held)
    # What MLflow makes of infinity.
    assert run.data.metrics["inf"] == sys.float_info.max
    assert math.isnan(run.data.metrics["nan"])
    assert {len(value) for value in run.data.params.values()} == {6000}
    assert {len(run.data.tags[encode_key(name)]) for name in names[:-1]} == {8000}
    assert run.data.tags["tag _x0040_ start"] == "'quoted' \\x00"


# Resuming


def test_a_resumed_run_continues_where_it_was(store: MlflowStore, client: MlflowClient) -> None:
    run_id = record(
        store,
        Parameters({"steps": "10", "rate": "0.1", "long": "v" * 7000}),
        Metrics({"loss": math.inf}, 1, 0),
        status=Status.KILLED,
    )
    second = store.find_or_create(identity(), run_id, None)
    assert second.run_id == run_id
    second.finish(Status.RUNNING, "")
    assert client.get_run(run_id).info.status == "RUNNING"
    for delivery in second.deliveries(
        [
            Parameters({"steps": "20", "rate": "0.1", "long": "v" * 7000, "new": "1"}),
            Metrics({"loss": 0.5, "gain": math.inf}, 2, 0),
        ]
    ):
        second.deliver(delivery)
    second.finish(Status.FINISHED, "")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert steps(client, run_id, "loss") == [1, 2]
    assert run.data.params["steps"] == "10"
    assert run.data.params["new"] == "1"
    assert run.data.tags["runner.parameters_changed"] == "steps: 10 -> 20"


# Deliveries that fail


def test_one_bad_entry_does_not_hold_back_the_others(
    mlflow_run: MlflowRun, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    points = tuple(MetricPoint(f"m{index}", 1.0, 0, 1) for index in range(10))
    bad = MetricPoint("bad@name", 1.0, 0, 1)
    tags = Tag("t", "1"), Tag("t", "2")
    mlflow_run.deliver((*points[:3], bad, *points[3:], Parameter("p", "1"), *tags))
    run = client.get_run(mlflow_run.run_id)
    assert set(run.data.metrics) == {point.key for point in points}
    assert run.data.params == {"p": "1"}
    assert run.data.tags["t"] == "2"
    assert mlflow_run.refused == [bad]
    assert "MLflow refuses metric value 'bad@name'" in caplog.text


def test_a_batch_delivered_twice_is_there_once(mlflow_run: MlflowRun, client: MlflowClient) -> None:
    points = tuple(MetricPoint("loss", float(step), 5, step) for step in range(100))
    batch: Delivery = (*points, MetricPoint("nan", math.nan, 5, 1), Parameter("p", "1"))
    mlflow_run.deliver(batch)
    mlflow_run.deliver(batch)
    assert steps(client, mlflow_run.run_id, "loss") == list(range(100))
    assert steps(client, mlflow_run.run_id, "nan") == [1]
    assert mlflow_run.refused == []


def test_an_artifact_that_cannot_be_kept_is_refused_after_a_few_attempts(
    mlflow_run: MlflowRun, client: MlflowClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, obstructed = Artifact(tmp_path / "gone.txt"), Artifact(tmp_path / "plan.txt", "plans")
    mlflow_run.deliver((gone,))
    assert "MLflow refuses artifact gone.txt: FileNotFoundError" in caplog.text
    obstructed.path.write_text("the plan")
    # A file where the folder should be.
    client.log_text(mlflow_run.run_id, "in the way", "plans")
    for failures in range(4):
        with pytest.raises(OSError, match="plans"):
            mlflow_run.deliver((obstructed,), failures)
    assert mlflow_run.refused == [gone]
    mlflow_run.deliver((obstructed,), 4)
    assert mlflow_run.refused == [gone, obstructed]


def test_what_another_process_writes_at_the_same_time_is_delivered_again(
    mlflow_run: MlflowRun, client: MlflowClient, database: Path
) -> None:
    dataset = Dataset("digits", "0" * 36)
    with closing(sqlite3.connect(database)) as connection:
        taken = "BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed'); END"
        connection.execute(f"CREATE TRIGGER d BEFORE INSERT ON datasets {taken}")
        with pytest.raises(MlflowException, match="UNIQUE"):
            mlflow_run.deliver((dataset,))
        connection.execute("DROP TRIGGER d")
    mlflow_run.deliver((dataset,), 1)
    assert mlflow_run.refused == []
    inputs = client.get_run(mlflow_run.run_id).inputs
    assert inputs is not None
    assert inputs.dataset_inputs[0].dataset.name == "digits"


FULL = "BEGIN SELECT RAISE(FAIL, 'full'); END"


@pytest.mark.parametrize(
    ("error", "breaking", "repairing"),
    [
        (
            "must be in the 'active' state",
            "UPDATE runs SET lifecycle_stage = 'deleted'",
            "UPDATE runs SET lifecycle_stage = 'active'",
        ),
        ("no such table", "ALTER TABLE metrics RENAME TO m", "ALTER TABLE m RENAME TO metrics"),
        (
            # Can be read, and MLflow's own error is the same as for a record that it cannot take.
            "full",
            f"CREATE TRIGGER m BEFORE INSERT ON metrics {FULL};"
            f"CREATE TRIGGER t BEFORE UPDATE ON tags {FULL};"
            f"CREATE TRIGGER u BEFORE INSERT ON tags {FULL}",
            "DROP TRIGGER m; DROP TRIGGER t; DROP TRIGGER u",
        ),
    ],
    ids=["deleted", "away", "read-only"],
)
def test_a_run_that_cannot_be_written_to_for_a_time_is_waited_for_however_long(
    mlflow_run: MlflowRun,
    client: MlflowClient,
    database: Path,
    error: str,
    breaking: str,
    repairing: str,
) -> None:
    batch = (MetricPoint("loss", 1.0, 0, 1),)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(breaking)
        with pytest.raises(Exception, match=error):
            mlflow_run.deliver(batch, 100)
        connection.executescript(repairing)
    mlflow_run.deliver(batch, 101)
    assert mlflow_run.refused == []
    assert steps(client, mlflow_run.run_id, "loss") == [1]


@pytest.mark.skipif(not records_load_of_any_store(), reason="refused with MLflow 3.0 to 3.6")
def test_the_load_of_the_machine_is_recorded_until_the_run_ends(
    mlflow_run: MlflowRun, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = threading.Event()
    publish = SystemMetricsMonitor.publish_metrics

    def publish_and_tell(*arguments: Any) -> None:
        publish(*arguments)  # type: ignore[no-untyped-call]
        published.set()

    monkeypatch.setattr(SystemMetricsMonitor, "publish_metrics", publish_and_tell)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    mlflow_run.monitor()
    mlflow_run.finish(Status.RUNNING, "")
    assert published.wait(60.0)
    metrics = client.get_run(mlflow_run.run_id).data.metrics
    assert "system/cpu_utilization_percentage" in metrics
    mlflow_run.finish(Status.FINISHED, "")
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}


# Models


@pytest.fixture
def run_id(client: MlflowClient, tmp_path: Path) -> str:
    experiment = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    run_id = str(client.create_run(experiment).info.run_id)
    client.set_terminated(run_id)
    return run_id


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    """It takes `features` [n, 3] and gives their sums and what is twice as much."""
    folder = tmp_path_factory.mktemp("model") / "export"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = tf.compat.v1.placeholder(tf.float32, [None, 3])
        sums = tf.reduce_sum(features, 1, keepdims=True)
        tf.compat.v1.saved_model.simple_save(
            session, str(folder), {"features": features}, {"sums": sums, "twice": 2 * sums}
        )
    number = np.dtype("float32")
    return ExportedModel(
        folder,
        12,
        (Field("features", number, (-1, 3)),),
        (Field("sums", number, (-1, 1)), Field("twice", number, (-1, 1))),
        {"features": np.ones([1, 3], number)},
    )


@pytest.fixture
def mlflow_here(store: MlflowStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.address.uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.address.uri)
    return mlflow


def _kept(run: Run) -> list[LoggedModelOutput]:
    return run.outputs.model_outputs if run.outputs else []


def test_mlflow_loads_what_is_kept_and_registered_once(
    store: MlflowStore, run_id: str, model: ExportedModel, client: MlflowClient, mlflow_here: Any
) -> None:
    kept = store.keep_model(run_id, model)
    for register, alias, uri in (
        (None, None, kept),
        ("net", None, "models:/net/1"),
        ("net", None, "models:/net/1"),
        ("net", "champion", "models:/net@champion"),
    ):
        assert store.keep_model(run_id, model, register, alias=alias) == uri
    assert len(client.search_model_versions("name = 'net'")) == 1
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for uri in (kept, "models:/net/1", "models:/net@champion"):
        served = mlflow_here.tensorflow.load_model(uri)
        assert served(features=tf.constant(values))["twice"].numpy().tolist() == [[6.0], [24.0]]
    general = mlflow_here.pyfunc.load_model("models:/net@champion")
    assert np.ravel(general.predict({"features": values})["sums"]).tolist() == [3.0, 12.0]
    assert general.input_example["features"].tolist() == [[1.0, 1.0, 1.0]]
    assert [each.name for each in general.metadata.signature.outputs.inputs] == ["sums", "twice"]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert [each.step for each in _kept(run)] == [12]


def test_what_mlflow_refuses_leaves_no_half_of_a_model(
    store: MlflowStore, run_id: str, model: ExportedModel, client: MlflowClient, tmp_path: Path
) -> None:
    gone = ExportedModel(tmp_path / "gone", 12, model.inputs, model.outputs, model.example)
    with pytest.raises(TrackingError, match=rf"the model of run {run_id} cannot be kept in sqlite"):
        store.keep_model(run_id, gone)
    assert not _kept(client.get_run(run_id))
    (failed,) = client.search_logged_models([client.get_run(run_id).info.experiment_id])
    assert str(failed.status) == "FAILED"
    # The next attempt makes a whole one.
    store.keep_model(run_id, model)
    assert len(_kept(client.get_run(run_id))) == 1
