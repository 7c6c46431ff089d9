"""Real stores: sources from an MLflow server, and runs that record while it or a process fails."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from runner.checkpoints.locate import checkpoint_paths
from runner.cluster.local import free_addresses
from runner.errors import TrackingError
from runner.system.locks import is_held
from runner.tracking.delivery import sync
from runner.tracking.mlflow_store import MlflowStore
from tests.support.following import twin
from tests.support.forked import Forked, Forks, environment
from tests.support.recording import Recording
from tests.support.runs import wait_for


class Server:
    """A server with a run that has the file `best/weights.npz`, the model `net@champion`."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        self._folder, self._forks = folder, forks
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: Forked | None = None

    def start(self) -> None:
        """Forks what `mlflow server` starts, which would import everything twice."""
        command = [sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(self.port)]
        given = {
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self._folder / 'mlflow.db'}",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self._folder / "served"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        with (self._folder / "log").open("ab") as log:
            self._process = self._forks.start(
                [*command, "mlflow.server.fastapi_app:app"],
                cwd=self._folder,
                env={**environment(), **given},
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        wait_for(self._answers, 120.0)

    def fill(self) -> None:
        client = MlflowClient(self.uri, self.uri)
        run = client.create_run(client.create_experiment("source"))
        np.savez(self._folder / "weights.npz", bias=np.full(2, 4.0, np.float32))
        client.log_artifact(run.info.run_id, str(self._folder / "weights.npz"), "best")
        client.create_registered_model("net")
        client.create_model_version("net", f"{run.info.artifact_uri}/best", run.info.run_id)
        client.set_registered_model_alias("net", "champion", "1")
        self.run_id, self.artifacts = str(run.info.run_id), str(run.info.artifact_uri)
        self.path = self.artifacts.removeprefix("mlflow-artifacts:/")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with closing(HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False


def free_port() -> int:
    (address,) = free_addresses(1)
    return int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def server(
    migrated_database: Path, tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(migrated_database, folder / "mlflow.db")
    server = Server(folder, forks)
    try:
        server.start()
        server.fill()
        yield server
    finally:
        server.kill()


# Sources


@pytest.mark.parametrize(
    "place",
    [
        "runs:/{0.run_id}/best",
        "runs:/{0.run_id}/best/weights.npz",
        "models:/net@champion",
        "models:/net@champion/weights.npz",
        "models:/net/1",
        "models:/net/latest",
        "{0.artifacts}/best",
        "mlflow-artifacts://127.0.0.1:{0.port}/{0.path}/best/weights.npz",
    ],
)
def test_a_uri_is_downloaded_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    uri, store = place.format(server), MlflowStore(server.uri)
    (path,) = checkpoint_paths(uri, artifacts=store)
    assert Path(path).is_relative_to(tmp_path)
    with np.load(path) as found:
        assert found["bias"].tolist() == [4.0, 4.0]
    os.utime(path, (1, 1))
    assert checkpoint_paths(uri, artifacts=store) == [path]
    assert os.stat(path).st_mtime == 1, "it was downloaded again"


def test_what_is_not_there_is_an_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    for uri in (f"runs:/{server.run_id}/nothing", f"{server.artifacts}/nothing"):
        with pytest.raises(TrackingError, match=f"{uri} cannot be downloaded from {server.uri}"):
            checkpoint_paths(uri, artifacts=MlflowStore(server.uri))


# Faults


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, or answers 500, or hangs, as it is told to."""

    target = 0
    fault = ""
    released = threading.Event()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.fault == "hang":
            self.released.wait(60.0)
            return
        with closing(HTTPConnection("127.0.0.1", self.target)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        if self.fault == "500":  # The store has taken it: what is lost is the answer.
            status, content = 500, b'{"error_code": "INTERNAL_ERROR"}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - the base class's name


@contextmanager
def proxy(server: Server, port: int) -> Iterator[type[Proxy]]:
    class Handler(Proxy):
        target = server.port
        released = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Handler
        finally:
            Handler.released.set()
            service.shutdown()
            thread.join()


def test_a_server_that_answers_500_or_hangs_gets_each_point_once(
    tmp_path: Path, server: Server, forks: Forks
) -> None:
    port = free_port()
    with proxy(server, port) as handler:
        run = Recording(forks, tmp_path / "run", f"http://127.0.0.1:{port}")
        run.record(200)
        run.delivered(200, server.uri)
        for fault in ("500", "hang"):
            handler.fault = fault
            before = run.interruptions()
            assert run.record(700) < 2.0, "a step has waited for the server"
            wait_for(lambda known=before: run.interruptions() > known)  # type: ignore[misc]
        handler.fault = ""
        handler.released.set()
        run.end()
        assert run.history(server.uri) == twin(1600)
        assert run.status(server.uri) == "FINISHED"


def test_what_a_server_that_is_gone_lacks_is_delivered_later(
    tmp_path: Path, server: Server, forks: Forks
) -> None:
    port = free_port()
    run = Recording(forks, tmp_path / "run", f"http://127.0.0.1:{port}")
    run.record(1500)
    logged = run.end()
    # Once, in the words of the moment: the run may be over when the follower tries first.
    said = ("Tracking is interrupted", "Nothing can be delivered now")
    assert sum(map(logged.count, said)) == 1
    assert f"runner sync {tmp_path}/run" in logged
    # The follower has given up by itself.
    wait_for(lambda: not is_held(run.directory.store(run.uri) / "lock"))
    with proxy(server, port):
        assert sync(run.directory)
    assert run.history(server.uri) == twin(1500)
    assert run.status(server.uri) == "FINISHED"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_that_dies_again_and_again_gets_each_point_once(
    tmp_path: Path, server: Server, forks: Forks
) -> None:
    run = Recording(forks, tmp_path / "run", server.uri)
    for number in range(12):
        run.record(3000)
        if number == 0:
            run.delivered(3000)
        server.kill()
        assert run.record(2000) < 2.0, "a step has waited for the server"
        server.start()
    run.end()
    assert run.history() == twin(60_000)
    assert run.status() == "FINISHED"


def test_a_run_whose_processes_are_killed_has_each_point_once(
    tmp_path: Path, database: Path, forks: Forks
) -> None:
    run = Recording(forks, tmp_path / "run", f"sqlite:///{database}")
    run.record(500)
    run.kill()
    # The process that delivers outlives it.
    wait_for(lambda: run.directory.position(run.uri).status == "KILLED", 120.0)
    assert run.history() == twin(500)
    assert run.status() == "KILLED"
    wait_for(lambda: not is_held(run.directory.store(run.uri) / "lock"))
    # The same command resumes from its checkpoint.
    again = Recording(forks, tmp_path / "run", run.uri, start=400)
    again.record(300)
    again.delivered(700)
    assert again.status() == "RUNNING"
    again.record(2000)
    again.kill(follower=True)
    assert 700 <= len(again.history()) < 2700
    # The next one delivers the rest.
    last = Recording(forks, tmp_path / "run", run.uri, start=2600)
    last.record(200)
    assert last.end() == ""
    assert last.history() == twin(2800)
    assert last.status() == "FINISHED"
    assert len(MlflowClient(tracking_uri=run.uri).search_runs(["1"])) == 1
