from __future__ import annotations

import http.server
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.errors import TrackingError
from runner.system.status import Status
from runner.tracking.journal import Text
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.mlflow_store import MlflowStore
from tests.tiny.recorded_runs import opening, read, record


@pytest.fixture
def unused_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


# Opening runs


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
        "from runner.tracking.mlflow_store import MlflowStore\n"
        "from runner.tracking.tracker import Status\n"
        "from runner.tracking.tracking_directory import Opening\n"
        "opening = Opening(sys.argv[1], 'raced', 'one', {})\n"
        "run = MlflowStore('sqlite:///mlflow.db').open_run(opening, None, None)\n"
        "run.finish(Status.FINISHED, '')\n"
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
    def run(experiment: str, status: Status, **tags: str) -> str:
        run_id = record(store, experiment=experiment, tags=tags, status=status)
        # MLflow orders by milliseconds.
        time.sleep(0.002)
        return run_id

    first = run("digits", Status.FINISHED, config="a", host="x")
    run("digits", Status.FINISHED, config="b", host="x")
    run("digits", Status.FAILED, config="a", host="x")
    run("digits", Status.KILLED, config="a", host="x")
    run("digits", Status.RUNNING, config="a", host="x")
    run("other", Status.FINISHED, config="a", host="x")
    last = run("digits", Status.FINISHED, config="a", host="x")
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
    assert (found.status, found.run_dir) == (Status.FINISHED, tmp_path)
    assert tags.items() <= found.tags.items()
    assert found.end_time is not None
    assert found.start_time <= found.end_time
    record(store, experiment="bare")
    assert store.finished("bare", {})[0].run_dir is None


def test_all_pages_of_runs_are_read(store: MlflowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.mlflow_store._PAGE", 2)
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
