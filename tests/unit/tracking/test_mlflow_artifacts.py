from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from runner.checkpoints.locate import resolve
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError
from runner.inspect import main
from runner.tracking.mlflow_artifacts import MlflowArtifacts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[MlflowArtifacts, str]:
    """A store with a run that logged weights, and a model with two versions of them."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.create_experiment("tiny", (folder / "artifacts").as_uri())
    run = client.create_run(experiment).info
    client.create_registered_model("net")
    for version in (1, 2):
        np.savez(folder / "weights.npz", w=np.full(2, float(version)))
        client.log_artifact(run.run_id, str(folder / "weights.npz"), f"v{version}")
        client.create_model_version("net", f"{run.artifact_uri}/v{version}", run.run_id)
    client.set_registered_model_alias("net", "champion", "1")
    return MlflowArtifacts(uri, client), run.run_id


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("runs:/{run}/v2", 2),
        ("runs:/{run}/v1/weights.npz", 1),
        ("models:/net@champion", 1),
        ("models:/net@champion/weights.npz", 1),
        ("models:/net/2", 2),
        ("models:/net/latest", 2),
    ],
)
def test_checkpoints_are_read_from_the_store(
    uri: str, expected: int, store: tuple[MlflowArtifacts, str]
) -> None:
    artifacts, run = store
    (path,) = resolve(uri.format(run=run), artifacts=artifacts)
    ((_, value),) = open_checkpoint(path).read(["w"])
    assert value.tolist() == [expected, expected]


def test_an_alias_is_pinned_to_its_version(store: tuple[MlflowArtifacts, str]) -> None:
    artifacts, run = store
    assert artifacts.pin("models:/net@champion/x") == "models:/net/1/x"
    assert artifacts.pin("models:/net/latest") == "models:/net/2"
    assert artifacts.pin(f"runs:/{run}/v1") == f"runs:/{run}/v1"


@pytest.mark.parametrize(
    "uri",
    ["models:/net@loser", "models:/other/latest", "models:/net/7", "runs:/0123/x", "runs:/{run}/x"],
)
def test_what_is_not_there_is_explained(uri: str, store: tuple[MlflowArtifacts, str]) -> None:
    artifacts, run = store
    uri = uri.format(run=run)
    with pytest.raises(CheckpointError, match=r"cannot be downloaded\n  cause: .+"):
        resolve(uri, artifacts=artifacts)


def test_the_command_line_takes_a_store(
    store: tuple[MlflowArtifacts, str], capsys: pytest.CaptureFixture[str]
) -> None:
    artifacts, _ = store
    assert main(["models:/net@champion", "--tracking", artifacts.store, "--stats"]) == 0
    assert "weights.npz" in capsys.readouterr().out
