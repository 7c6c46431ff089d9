from __future__ import annotations

import http.server
import math
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from runner.errors import TrackingError
from runner.tracking.keys import decode_key
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.mlflow_tracker import MlflowStore
from runner.tracking.records import (
    Artifact,
    Batch,
    Dataset,
    MetricPoint,
    Metrics,
    Parameter,
    Parameters,
    Record,
    Tag,
    Tags,
    Text,
)
from runner.tracking.tracker import RunStatus
from runner.tracking.tracking_directory import Opening


@pytest.fixture
def store(database: Path) -> MlflowStore:
    return MlflowStore(f"sqlite:///{database}")


@pytest.fixture
def client(store: MlflowStore) -> MlflowClient:
    return MlflowClient(tracking_uri=store.address.uri)


@pytest.fixture
def unused_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def opening(
    experiment: str = "digits", run_name: str = "one", tags: Mapping[str, str] | None = None
) -> Opening:
    return Opening(uuid.uuid4().hex, experiment, run_name, tags or {})


@pytest.fixture
def mlflow_run(store: MlflowStore) -> MlflowRun:
    return store.open_run(opening("plain"), None, None)


def record(
    store: MlflowStore,
    *records: Record,
    experiment: str = "digits",
    tags: Mapping[str, str] | None = None,
    status: RunStatus = RunStatus.FINISHED,
) -> str:
    """Records a whole run and returns its id."""
    run = store.open_run(opening(experiment, tags=tags), None, None)
    for delivery in run.deliveries(records):
        run.deliver(delivery)
    run.finish(status, "")
    return run.run_id


def read(client: MlflowClient, run_id: str) -> Run:
    return client.get_run(run_id)


def steps(client: MlflowClient, run_id: str, key: str) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run_id, key))


# A run from start to end


def test_a_run_holds_everything_that_was_recorded(
    store: MlflowStore, client: MlflowClient, tmp_path: Path
) -> None:
    (tmp_path / "plan.txt").write_text("the plan")
    (tmp_path / "best" / "deep").mkdir(parents=True)
    (tmp_path / "best" / "deep" / "weights").write_bytes(b"\x00\x01")
    run_ = store.open_run(opening("digits", "digits-1", {"host": "here"}), None, "0" * 32)
    assert read(client, run_.run_id).info.status == "RUNNING"
    for delivery in run_.deliveries(
        [
            Parameters({"train.steps": 10, "name": "cnn"}),
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
    run_.finish(RunStatus.FINISHED, "")

    run = read(client, run_.run_id)
    assert run.info.run_name == "digits-1"
    assert run.info.status == "FINISHED"
    assert run.info.end_time >= run.info.start_time
    assert run.data.params == {"train.steps": "10", "name": "cnn"}
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


@pytest.mark.parametrize("status", list(RunStatus))
def test_the_status_is_the_one_that_was_given(
    store: MlflowStore, client: MlflowClient, status: RunStatus
) -> None:
    run_id = record(store, status=status)
    assert read(client, run_id).info.status == status.value
    assert (read(client, run_id).info.end_time is None) == (status is RunStatus.RUNNING)


def test_what_is_missing_is_a_tag(mlflow_run: MlflowRun, client: MlflowClient) -> None:
    mlflow_run.finish(RunStatus.FINISHED, "2 tags")
    assert read(client, mlflow_run.run_id).data.tags["runner.not_delivered"] == "2 tags"


def test_a_run_whose_id_was_lost_is_not_created_twice(
    store: MlflowStore, client: MlflowClient
) -> None:
    first, other = opening(), opening()
    runs = [store.open_run(each, None, None) for each in (first, first, other)]
    assert runs[0].run_id == runs[1].run_id != runs[2].run_id
    assert len(client.search_runs([runs[0].experiment_id])) == 2


def test_files_stay_beside_the_database_wherever_the_program_runs(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    store = MlflowStore()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run_id = record(store, Text("here", "a.txt"), experiment="digits/cnn")
    assert list(elsewhere.iterdir()) == []
    found = [path.relative_to(database.parent) for path in database.parent.rglob("a.txt")]
    assert found == [Path("mlartifacts/digits%2Fcnn", run_id, "artifacts/a.txt")]
    assert store.address.uri == f"sqlite:///{database}"


def test_more_than_one_request_holds_arrives_whole(
    store: MlflowStore, client: MlflowClient
) -> None:
    run_id = record(
        store,
        Parameters({f"p{index}": index for index in range(250)}),
        Tags({f"t{index}": "1" for index in range(150)}),
        *(Metrics({"loss": float(step), "accuracy": 0.5}, step, 0) for step in range(1250)),
        tags={f"first{index}": "1" for index in range(150)},
    )
    run = read(client, run_id)
    assert len(run.data.params) == 250
    assert len([tag for tag in run.data.tags if tag[0] in "tf" and tag[-1].isdigit()]) == 300
    for key in ("loss", "accuracy"):
        assert steps(client, run_id, key) == list(range(1250))


def test_numbers_that_are_not_finite_are_told_apart(
    store: MlflowStore, client: MlflowClient
) -> None:
    run_id = record(store, Metrics({"nan": math.nan, "inf": math.inf, "minus": -math.inf}, 1, 0))
    run = read(client, run_id)
    assert math.isnan(run.data.metrics["nan"])
    # What MLflow makes of infinity; the tag says that it was one.
    assert run.data.metrics["inf"] == -run.data.metrics["minus"] == sys.float_info.max
    assert run.data.tags["runner.infinite_metrics"] == "inf\nminus"


def test_names_and_values_of_any_kind_arrive(store: MlflowStore, client: MlflowClient) -> None:
    names = ["f(x)=1", "größe", "a//b", "../up", "", "🎯", "tab\t", "100%", '["a.b"]', "k" * 300]
    run_id = record(
        store,
        Parameters(dict.fromkeys(names, "v" * 7000)),
        Metrics(dict.fromkeys(names, 1.0), 1, 0),
        Tags(dict.fromkeys(names, "v" * 9000)),
        tags={"tag @ start": "'quoted' \x00"},
    )
    run = read(client, run_id)
    for held in (run.data.params, run.data.metrics, run.data.tags):
        assert set(names[:-1]) <= {decode_key(key) for key in held}
        assert any(key.startswith("kkk") and len(key) == 250 for key in held)
    assert {len(value) for value in run.data.params.values()} == {6000}
    assert run.data.tags["runner.keys_shortened"] == "k" * 300
    assert set(
        run.data.tags["runner.parameters_shortened"].replace("tab ", "tab\t").split("\n")
    ) == set(names)
    assert run.data.tags["tag _x0040_ start"] == "'quoted' \\x00"


# Resuming


def test_a_resumed_run_goes_on_where_it_was(store: MlflowStore, client: MlflowClient) -> None:
    run_id = record(
        store,
        Parameters({"steps": 10, "rate": 0.1, "long": "v" * 7000}),
        Metrics({"loss": math.inf}, 1, 0),
        status=RunStatus.KILLED,
    )
    second = store.open_run(opening(), run_id, None)
    assert second.run_id == run_id
    second.finish(RunStatus.RUNNING, "")
    assert read(client, run_id).info.status == "RUNNING"
    for delivery in second.deliveries(
        [
            Parameters({"steps": 20, "rate": 0.1, "long": "v" * 7000, "new": 1}),
            Metrics({"loss": 0.5, "gain": math.inf}, 2, 0),
        ]
    ):
        second.deliver(delivery)
    second.finish(RunStatus.FINISHED, "")
    run = read(client, run_id)
    assert run.info.status == "FINISHED"
    assert steps(client, run_id, "loss") == [1, 2]
    assert run.data.params["steps"] == "10"
    assert run.data.params["new"] == "1"
    assert run.data.tags["runner.parameters_changed"] == "steps: 10 -> 20"
    assert run.data.tags["runner.infinite_metrics"] == "loss\ngain"


def test_a_run_that_does_not_exist_any_more_is_created_anew(
    store: MlflowStore, client: MlflowClient
) -> None:
    run_id = store.open_run(opening(), "0" * 32, None).run_id
    assert run_id != "0" * 32
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_deleted_run_cannot_be_opened(store: MlflowStore, client: MlflowClient) -> None:
    run_id = record(store)
    client.delete_run(run_id)
    with pytest.raises(TrackingError, match=rf"deleted.*\n.*runs restore --run-id {run_id}"):
        store.open_run(opening(), run_id, None)


# Experiments


def test_a_deleted_experiment_is_an_error_with_the_command_that_restores_it(
    store: MlflowStore, client: MlflowClient
) -> None:
    experiment_id = client.create_experiment("digits")
    client.delete_experiment(experiment_id)
    with pytest.raises(
        TrackingError,
        match=rf"experiment 'digits'.*\n.*deleted.*\n.*restore --experiment-id {experiment_id}",
    ):
        store.open_run(opening(), None, None)


def test_an_experiment_name_that_mlflow_refuses_is_an_error(store: MlflowStore) -> None:
    with pytest.raises(TrackingError, match="run 'one' of '' cannot be opened"):
        store.open_run(opening(""), None, None)


def test_threads_that_start_an_experiment_at_once_share_it(
    store: MlflowStore, client: MlflowClient
) -> None:
    barrier = threading.Barrier(4)
    runs: list[MlflowRun] = []

    def start() -> None:
        barrier.wait()
        runs.append(store.open_run(opening("raced"), None, None))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    experiments = {read(client, run.run_id).info.experiment_id for run in runs}
    assert len(runs) == 4
    assert len(experiments) == 1


def test_processes_that_create_the_database_at_once_share_it_and_keep_quiet(
    tmp_path: Path,
) -> None:
    script = (
        "import logging, sys\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from runner.tracking.mlflow_tracker import MlflowStore\n"
        "from runner.tracking.tracker import RunStatus\n"
        "from runner.tracking.tracking_directory import Opening\n"
        "opening = Opening(sys.argv[1], 'raced', 'one', {})\n"
        "run = MlflowStore('sqlite:///mlflow.db').open_run(opening, None, None)\n"
        "run.finish(RunStatus.FINISHED, '')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, uid], cwd=tmp_path, stderr=subprocess.PIPE)
        for uid in "ab"
    ]
    outputs = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    runs = MlflowStore(f"sqlite:///{tmp_path}/mlflow.db").finished("raced", {})
    assert len(runs) == 2
    for output in outputs:
        assert "INFO" not in output
        assert "Traceback" not in output


# Finding runs


def test_finished_runs_are_found_by_their_tags_newest_first(store: MlflowStore) -> None:
    def run(experiment: str, status: RunStatus, **tags: str) -> str:
        run_id = record(store, experiment=experiment, tags=tags, status=status)
        # MLflow orders by milliseconds.
        time.sleep(0.002)
        return run_id

    first = run("digits", RunStatus.FINISHED, config="a", host="x")
    run("digits", RunStatus.FINISHED, config="b", host="x")
    run("digits", RunStatus.FAILED, config="a", host="x")
    run("digits", RunStatus.KILLED, config="a", host="x")
    run("digits", RunStatus.RUNNING, config="a", host="x")
    run("other", RunStatus.FINISHED, config="a", host="x")
    last = run("digits", RunStatus.FINISHED, config="a", host="x")
    found = store.finished("digits", {"config": "a", "host": "x"})
    assert [item.run_id for item in found] == [last, first]
    assert store.finished("digits", {"config": "c"}) == []
    assert store.finished("no such experiment", {}) == []


@pytest.mark.parametrize(
    "value",
    ["it's", 'say "hi"', "a'b\"c", "", "a = b, -- c", "back`tick", "größe", "\\", "v" * 9000],
)
def test_any_value_of_a_tag_can_be_looked_for(store: MlflowStore, value: str) -> None:
    for name in (value, "something else"):
        record(store, tags={"note @": name})
    assert len(store.finished("digits", {"note @": value})) == 1


def test_a_found_run_tells_what_is_needed_to_use_it(store: MlflowStore, tmp_path: Path) -> None:
    tags = {"runner.run_dir": str(tmp_path), "f(x)": "1"}
    run_id = record(store, tags=tags)
    (found,) = store.finished("digits", {"f(x)": "1"})
    assert (found.run_id, found.experiment, found.name) == (run_id, "digits", "one")
    assert store.run(run_id) == found
    assert (found.status, found.run_dir) == (RunStatus.FINISHED, tmp_path)
    assert tags.items() <= found.tags.items()
    assert found.end_time is not None
    assert found.start_time <= found.end_time
    record(store, experiment="bare")
    assert store.finished("bare", {})[0].run_dir is None


def test_all_pages_of_runs_are_read(store: MlflowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.mlflow_tracker._PAGE", 2)
    for _ in range(5):
        record(store)
    assert len({run.run_id for run in store.finished("digits", {})}) == 5


def test_runs_cannot_be_listed_in_a_store_that_broke(store: MlflowStore, database: Path) -> None:
    store.connect()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE experiments")
    with pytest.raises(
        TrackingError, match=r"runs of experiment 'digits' cannot be listed\n.*no such"
    ):
        store.finished("digits", {})


def test_a_run_that_does_not_exist_cannot_be_read(store: MlflowStore) -> None:
    with pytest.raises(TrackingError, match=rf"run {'0' * 32} cannot be read\n.*not found"):
        store.run("0" * 32)


# Stores that cannot be opened


def test_a_file_that_is_no_database_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes " * 1000)
    with pytest.raises(TrackingError, match=r"notes\.txt cannot be opened\n.*not a database"):
        MlflowStore(f"sqlite:///{tmp_path}/notes.txt").connect()


def test_a_database_of_another_mlflow_version_cannot_be_opened(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with pytest.raises(TrackingError, match=r"out-of-date.*\n.*mlflow db upgrade 'sqlite:///"):
        MlflowStore(f"sqlite:///{database}").connect()


def test_a_database_server_that_is_not_there_cannot_be_opened(unused_port: int) -> None:
    # Without its driver installed that is already so: either way it must be told at once.
    began = time.monotonic()
    with pytest.raises(
        TrackingError, match=r"postgresql://me:\*\*\*@.* cannot be opened"
    ) as raised:
        MlflowStore(f"postgresql://me:s3cret@127.0.0.1:{unused_port}/runs").connect()
    assert "s3cret" not in str(raised.value)
    assert time.monotonic() - began < 30.0


def test_a_server_that_is_not_there_cannot_be_opened(unused_port: int) -> None:
    began = time.monotonic()
    store = MlflowStore(f"http://me:s3cret@127.0.0.1:{unused_port}")
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:\d+ cannot be opened\n.*") as raised:
        store.open_run(opening(), None, None)
    assert len(str(raised.value)) < 1000
    assert "refused" in str(raised.value)
    assert "check tracking.uri" in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert time.monotonic() - began < 30.0


def test_a_server_that_does_not_answer_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with pytest.raises(TrackingError, match=r"cannot be opened\n.*timed out"):
            MlflowStore(f"http://127.0.0.1:{port}").connect()


def test_a_server_that_is_not_mlflow_cannot_be_opened(tmp_path: Path) -> None:
    class Empty(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, format: str, *arguments: object) -> None:
            """Keeps the test's output clean."""

    with http.server.HTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with pytest.raises(TrackingError, match=r"cannot be opened\n.*(501|404)"):
            MlflowStore(f"http://127.0.0.1:{server.server_port}").connect()
        server.shutdown()
        thread.join()


# Deliveries that fail


def test_one_bad_entry_does_not_hold_back_the_others(
    mlflow_run: MlflowRun, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    points = tuple(MetricPoint(f"m{index}", 1.0, 0, 1) for index in range(10))
    bad = MetricPoint("bad@name", 1.0, 0, 1)
    mlflow_run.deliver(
        Batch((*points[:3], bad, *points[3:]), (Parameter("p", "1"),), (Tag("t", "1"),))
    )
    run = read(client, mlflow_run.run_id)
    assert set(run.data.metrics) == {point.key for point in points}
    assert run.data.params == {"p": "1"}
    assert run.data.tags["t"] == "1"
    assert mlflow_run.refused == (Batch((bad,)),)
    assert "MLflow refuses metric 'bad@name'" in caplog.text


def test_a_batch_delivered_twice_is_there_once(mlflow_run: MlflowRun, client: MlflowClient) -> None:
    points = tuple(MetricPoint("loss", float(step), 5, step) for step in range(100))
    batch = Batch((*points, MetricPoint("nan", math.nan, 5, 1)), (Parameter("p", "1"),))
    mlflow_run.deliver(batch)
    mlflow_run.deliver(batch)
    assert steps(client, mlflow_run.run_id, "loss") == list(range(100))
    assert steps(client, mlflow_run.run_id, "nan") == [1]
    assert mlflow_run.refused == ()


def test_an_artifact_that_has_gone_is_refused(
    mlflow_run: MlflowRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = Artifact(tmp_path / "gone.txt", "plans")
    mlflow_run.deliver(artifact)
    assert mlflow_run.refused == (artifact,)
    assert "MLflow refuses artifact gone.txt: FileNotFoundError" in caplog.text


def test_an_error_of_unknown_kind_is_final_after_a_few_attempts(
    mlflow_run: MlflowRun, client: MlflowClient, tmp_path: Path
) -> None:
    artifact = Artifact(tmp_path / "plan.txt", "plans")
    artifact.path.write_text("the plan")
    # A file where the folder should be.
    client.log_text(mlflow_run.run_id, "in the way", "plans")
    for failures in range(4):
        with pytest.raises(OSError, match="plans"):
            mlflow_run.deliver(artifact, failures)
    assert not mlflow_run.refused
    mlflow_run.deliver(artifact, 4)
    assert list(mlflow_run.refused) == [artifact]


def test_a_run_deleted_while_it_is_recorded_is_waited_for(
    mlflow_run: MlflowRun, client: MlflowClient
) -> None:
    batch = Batch((MetricPoint("loss", 1.0, 0, 1),))
    client.delete_run(mlflow_run.run_id)
    with pytest.raises(Exception, match="must be in the 'active' state"):
        mlflow_run.deliver(batch, 100)
    client.restore_run(mlflow_run.run_id)
    mlflow_run.deliver(batch, 101)
    assert read(client, mlflow_run.run_id).data.metrics == {"loss": 1.0}
    assert mlflow_run.refused == ()


def test_a_store_that_is_away_is_waited_for_however_long(
    mlflow_run: MlflowRun, database: Path
) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE metrics RENAME TO moved")
    batch = Batch((MetricPoint("loss", 1.0, 0, 1),))
    with pytest.raises(Exception, match="no such table"):
        mlflow_run.deliver(batch, 100)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE moved RENAME TO metrics")
    mlflow_run.deliver(batch, 101)
    assert mlflow_run.refused == ()


def test_a_store_that_is_read_only_for_a_time_is_waited_for_however_long(
    mlflow_run: MlflowRun, database: Path, client: MlflowClient
) -> None:
    def sql(statement: str) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement)

    batch = Batch((MetricPoint("loss", 1.0, 0, 1),))
    # Reading goes on, and MLflow's own error is the same as for a record that it cannot take.
    sql("CREATE TRIGGER m BEFORE INSERT ON metrics BEGIN SELECT RAISE(FAIL, 'full'); END")
    sql("CREATE TRIGGER t BEFORE UPDATE ON tags BEGIN SELECT RAISE(FAIL, 'full'); END")
    sql("CREATE TRIGGER u BEFORE INSERT ON tags BEGIN SELECT RAISE(FAIL, 'full'); END")
    with pytest.raises(Exception, match="full"):
        mlflow_run.deliver(batch, 100)
    for name in "mtu":
        sql(f"DROP TRIGGER {name}")
    mlflow_run.deliver(batch, 101)
    assert mlflow_run.refused == ()
    assert steps(client, mlflow_run.run_id, "loss") == [1]


def test_the_load_of_the_machine_is_recorded_until_the_run_ends(
    mlflow_run: MlflowRun, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    mlflow_run.monitor()
    deadline = time.monotonic() + 20.0
    while "system/cpu_utilization_percentage" not in read(client, mlflow_run.run_id).data.metrics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    mlflow_run.finish(RunStatus.FINISHED, "")
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}
