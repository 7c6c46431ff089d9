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
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput

from runner.cluster.local import free_addresses
from runner.errors import TrackingError
from runner.system.status import Status
from runner.tracking.journal import Text
from runner.tracking.mlflow_connection import exclusive
from runner.tracking.mlflow_run import MlflowRun
from runner.tracking.mlflow_store import MlflowStore
from tests.support.recorded_runs import identity, record

# Opening runs


def test_a_run_is_created_once_unless_it_does_not_exist_any_more(
    store: MlflowStore, client: MlflowClient
) -> None:
    first, other = identity(), identity()
    runs = [store.find_or_create(each, None, None) for each in (first, first, other)]
    assert runs[0].run_id == runs[1].run_id != runs[2].run_id
    reopened = store.find_or_create(identity(), "0" * 32, None)
    run_ids = {run.info.run_id for run in client.search_runs([reopened.experiment_id])}
    assert run_ids == {reopened.run_id, *(run.run_id for run in runs)}


def test_an_experiment_opens_as_model_training_unless_a_user_has_chosen_otherwise(
    store: MlflowStore, client: MlflowClient
) -> None:
    client.create_experiment("old", tags={})
    client.create_experiment("chosen", tags={"mlflow.experimentKind": "forecasting"})
    found = {}
    for name in ("new", "old", "chosen"):
        run = store.find_or_create(identity(name), None, None)
        found[name] = client.get_experiment(run.experiment_id).tags["mlflow.experimentKind"]
    training = "custom_model_development"
    assert found == {"new": training, "old": training, "chosen": "forecasting"}


def test_files_stay_beside_the_database_wherever_the_program_runs(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    store = MlflowStore()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run_id = record(store, Text("here", "a.txt"), experiment="digits/cnn")
    # MLflow 3.8 and older leaves an empty folder.
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
    found = [path.relative_to(database.parent) for path in database.parent.rglob("a.txt")]
    assert found == [Path("mlartifacts/digits%2Fcnn", run_id, "artifacts/a.txt")]
    assert store.address.database == database


def test_what_is_deleted_is_an_error_with_the_command_that_restores_it(
    store: MlflowStore, client: MlflowClient
) -> None:
    run = store.find_or_create(identity("digits"), None, None)
    client.delete_run(run.run_id)
    with pytest.raises(TrackingError, match=rf"deleted.*\n.*runs restore --run-id {run.run_id}"):
        store.find_or_create(identity("digits"), run.run_id, None)
    client.delete_experiment(run.experiment_id)
    restore = rf"experiment 'digits'.*\n.*deleted.*\n.*restore --experiment-id {run.experiment_id}"
    with pytest.raises(TrackingError, match=restore):
        store.find_or_create(identity("digits"), None, None)


def test_what_mlflow_cannot_do_is_an_error_of_the_runner(
    store: MlflowStore, database: Path
) -> None:
    with pytest.raises(TrackingError, match="run 'one' of '' cannot be opened"):
        store.find_or_create(identity(""), None, None)
    with pytest.raises(TrackingError, match=rf"run {'0' * 32} cannot be read\n.*not found"):
        store.run("0" * 32)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE experiments")
    with pytest.raises(TrackingError, match=r"experiment 'e' cannot be listed\n.*no such"):
        store.finished("e", {})


def test_threads_that_start_an_experiment_at_once_share_it(
    store: MlflowStore, client: MlflowClient
) -> None:
    barrier = threading.Barrier(4)
    runs: list[MlflowRun] = []

    def start() -> None:
        barrier.wait()
        runs.append(store.find_or_create(identity("raced"), None, None))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    experiments = {client.get_run(run.run_id).info.experiment_id for run in runs}
    assert len(runs) == 4
    assert len(experiments) == 1


@pytest.mark.soak
def test_processes_that_create_the_database_at_once_share_it_and_keep_quiet(tmp_path: Path) -> None:
    script = (
        "import logging, sys\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from runner.tracking.mlflow_store import MlflowStore\n"
        "from runner.system.status import Status\n"
        "from runner.tracking.tracking_directory import RunIdentity\n"
        "identity = RunIdentity(sys.argv[1], 'raced', 'one', {})\n"
        "run = MlflowStore('sqlite:///mlflow.db').find_or_create(identity, None, None)\n"
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


def test_tags_of_any_name_and_value_without_quotes_are_found(store: MlflowStore) -> None:
    values = ['say "hi"', "", "a = b, -- c", "back`tick", "größe", "v" * 9000]
    ids = [record(store, tags={"note @": value}) for value in values]
    found = [store.finished("digits", {"note @": value}) for value in values]
    assert [[run.run_id for run in each] for each in found] == [[each] for each in ids]


def test_a_found_run_has_what_is_needed_to_use_it(store: MlflowStore, tmp_path: Path) -> None:
    tags = {"runner.run_dir": str(tmp_path), "f(x)": "1"}
    run_id = record(store, tags=tags)
    (found,) = store.finished("digits", {"f(x)": "1"})
    assert (found.run_id, found.experiment) == (run_id, "digits")
    assert store.run(run_id) == found
    assert (found.status, found.run_dir) == (Status.FINISHED, tmp_path)
    assert tags.items() <= found.tags.items()
    record(store, experiment="bare")
    assert store.finished("bare", {})[0].run_dir is None


# Stores that cannot be opened


def test_a_database_of_another_mlflow_version_cannot_be_opened(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of tomorrow'")
    with pytest.raises(TrackingError, match=r"of tomorrow.*\n.*mlflow db upgrade 'sqlite:///"):
        MlflowStore(f"sqlite:///{database}").connect()


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_server_that_is_not_there_cannot_be_opened(scheme: str) -> None:
    # Of a database without its driver installed that is already so.
    (address,) = free_addresses(1)
    store = MlflowStore(f"{scheme}://me:s3cret@{address}/runs")
    pattern = scheme + r"://me:\*\*\*@.* cannot be opened"
    with pytest.raises(TrackingError, match=pattern) as raised:
        store.find_or_create(identity(), None, None)
    assert len(str(raised.value)) < 1000
    assert "check tracking.uri" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_what_is_not_an_mlflow_server_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    address = ("127.0.0.1", 0)
    with (
        closing(socket.create_server(address)) as silent,
        pytest.raises(TrackingError, match=r"cannot be opened\n.*timed out"),
    ):
        MlflowStore(f"http://127.0.0.1:{silent.getsockname()[1]}").connect()
    with http.server.HTTPServer(address, http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,))
        thread.start()
        with pytest.raises(TrackingError, match=r"cannot be opened\n.*501"):
            MlflowStore(f"http://127.0.0.1:{other.server_port}").connect()
        other.shutdown()
        thread.join()


# Creating a database


def test_a_creation_that_was_cut_short_begins_anew(tmp_path: Path) -> None:
    database = tmp_path / "new folder" / "mlflow.db"

    def create(table: str) -> list[tuple[str]]:
        with exclusive(database), closing(sqlite3.connect(database)) as connection:
            connection.execute(f"CREATE TABLE {table} (x)")
            connection.commit()
            if table == "half":
                raise KeyboardInterrupt
            return connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()

    with pytest.raises(KeyboardInterrupt):
        create("half")
    assert create("one") == [("one",)]
    assert create("two") == [("one",), ("two",)], "what was completed stays"
    assert [path.name for path in database.parent.glob("*.creating")] == []


def test_a_lock_that_is_kept_is_an_error(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    with (
        FileLock(f"{database}.lock"),
        pytest.raises(TrackingError, match=r"mlflow\.db\.lock.* could not be acquired"),
        exclusive(database, lock_seconds=0.01),
    ):
        pytest.fail("entered in spite of the lock")


def test_what_is_not_a_database_is_an_error_and_stays_as_it_was(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("these are notes, and quite a lot of them" * 100)
    before = notes.read_bytes()
    for database, cause in ((notes, "not a database"), (notes / "x.db", "File exists")):
        state = rf"{database.name} cannot be opened\n.*{cause}"
        with pytest.raises(TrackingError, match=state), exclusive(database):
            pytest.fail("entered with a text file")
    assert notes.read_bytes() == before


# Artifacts


def test_an_alias_is_pinned_to_its_version(
    store: MlflowStore, client: MlflowClient, tmp_path: Path
) -> None:
    client.create_registered_model("net")
    for _ in range(2):
        client.create_model_version("net", tmp_path.as_uri())
    client.set_registered_model_alias("net", "champion", "1")
    pinned = {
        "models:/net@champion": "models:/net/1",
        "models:/net@champion/weights.npz": "models:/net/1/weights.npz",
        "models:/net/latest": "models:/net/2",
        "models:/net/2": "models:/net/2",
        "runs:/abc/best": "runs:/abc/best",
        "mlflow-artifacts:/a/b": "mlflow-artifacts:/a/b",
    }
    assert {uri: store.pin(uri) for uri in pinned} == pinned
    for uri in ("models:/net@other", "models:/other/latest", "models:/other@a"):
        with pytest.raises(TrackingError, match=f"{uri} is not in sqlite:"):
            store.pin(uri)
    client.create_registered_model("empty")
    with pytest.raises(TrackingError, match="the model empty has no version"):
        store.pin("models:/empty/latest")


def test_a_logged_model_and_a_whole_run_are_downloaded(
    store: MlflowStore, client: MlflowClient, tmp_path: Path
) -> None:
    experiment = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    client.log_text(run_id, "content", "best/weights.npz")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "w.npz").write_text("logged")
    kept = client.create_logged_model(experiment, "model", run_id)
    client.log_model_artifacts(kept.model_id, str(tmp_path / "saved"))
    client.finalize_logged_model(kept.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(kept.model_id, 1)])
    for place in (f"models:/{kept.model_id}", f"runs:/{run_id}/model"):
        folder = store.download(place, str(tmp_path))
        assert (Path(folder) / "w.npz").read_text() == "logged"
        file = store.download(f"{place}/w.npz", str(tmp_path))
        assert Path(file).read_text() == "logged"
    whole = store.download(f"runs:/{run_id}", str(tmp_path))
    assert (Path(whole) / "best" / "weights.npz").read_text() == "content"


def test_a_search_creates_no_database(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"runs:/1/x is not in sqlite:.*\n.*there is no "):
        MlflowStore(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}").pin("runs:/1/x")
    assert list(tmp_path.iterdir()) == []
