"""Sources in a real MLflow server that serves artifacts, on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.locate import resolve
from runner.errors import TrackingError
from runner.tracking.mlflow_store import MlflowStore

from .conftest import Command, said

# Seconds; the server usually answers after ten.
PATIENCE = 90
VALUES = {
    "body/dense/bias": np.full(4, 3.0, np.float32),
    "head/bias": np.full(2, 4.0, np.float32),
    "body/norm/beta": np.full(4, 5.0, np.float32),
}


@dataclass(frozen=True)
class Server:
    """A server with a run that has the file `best/weights.npz`, the model `net@champion`.

    Attributes:
      uri: its address.
      run_id: the run.
      artifacts: the `mlflow-artifacts:` URI of the run's files.
    """

    uri: str
    run_id: str
    artifacts: str


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not answer in {PATIENCE} s: {log.read_text()}")


def _filled(uri: str, folder: Path) -> Server:
    from mlflow import MlflowClient

    client = MlflowClient(uri, uri)
    run = client.create_run(client.create_experiment("source"))
    np.savez(folder / "weights.npz", allow_pickle=False, **VALUES)
    client.log_artifact(run.info.run_id, str(folder / "weights.npz"), "best")
    client.create_registered_model("net")
    client.create_model_version("net", f"{run.info.artifact_uri}/best", run.info.run_id)
    client.set_registered_model_alias("net", "champion", "1")
    return Server(uri, run.info.run_id, run.info.artifact_uri)


@pytest.fixture(scope="module")
def server(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(migrated_database, folder / "mlflow.db")
    port = _free_port()
    uri, log = f"http://127.0.0.1:{port}", folder / "log"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "served")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            # Without eight further processes, which run jobs.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait(uri, process, log)
        yield _filled(uri, folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


URIS: dict[str, Callable[[Server], str]] = {
    "run": lambda server: f"runs:/{server.run_id}/best",
    "file of a run": lambda server: f"runs:/{server.run_id}/best/weights.npz",
    "alias": lambda server: "models:/net@champion",
    "file of an alias": lambda server: "models:/net@champion/weights.npz",
    "version": lambda server: "models:/net/1",
    "latest": lambda server: "models:/net/latest",
    "artifacts": lambda server: f"{server.artifacts}/best",
    "artifacts of a named server": lambda server: (
        server.artifacts.replace(
            "mlflow-artifacts:/", f"mlflow-artifacts://{server.uri.removeprefix('http://')}/"
        )
        + "/best/weights.npz"
    ),
}


@pytest.mark.parametrize("kind", URIS)
def test_a_uri_is_downloaded_once(server: Server, cache: Path, kind: str) -> None:
    store = MlflowStore(server.uri)
    (path,) = resolve(URIS[kind](server), artifacts=store)
    assert Path(path).is_relative_to(cache)
    with np.load(path) as found:
        assert {name: found[name].tolist() for name in found} == {
            name: value.tolist() for name, value in VALUES.items()
        }
    os.utime(path, (1, 1))
    assert resolve(URIS[kind](server), artifacts=store) == [path]
    assert os.stat(path).st_mtime == 1, "it was downloaded again"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("place", ["runs:/{0.run_id}/nothing", "{0.artifacts}/nothing"])
def test_what_is_not_there_is_said(server: Server, place: str) -> None:
    uri = place.format(server)
    with pytest.raises(TrackingError, match=f"{uri} cannot be downloaded from {server.uri}"):
        resolve(uri, artifacts=MlflowStore(server.uri))


@pytest.mark.usefixtures("cache")
def test_a_run_starts_from_all_of_them(server: Server, command: Command) -> None:
    scaffolds = {
        "bias": ("body/dense/bias", f"runs:/{server.run_id}/best"),
        "head": ("head/bias", "models:/net@champion"),
        "norm": ("body/norm/beta", f"{server.artifacts}/best/weights.npz"),
    }
    done = command.run(
        "+experiment=tiny",
        *(
            f"++scaffolds.{name}={{variables: {{include: ['{variable}']}}, checkpoint: '{uri}'}}"
            for name, (variable, uri) in scaffolds.items()
        ),
        f"tracking.uri={server.uri}",
        "restoration.verify=true",
        "train.steps=2",
        "train.evaluate_every=2",
    )
    assert (done.returncode, said(done)) == (0, []), done.stderr
    for name in scaffolds:
        (line,) = (each for each in done.stdout.splitlines() if each.startswith(f"  {name}:"))
        assert "1 variable (" in line
        assert "sha256:" in line
