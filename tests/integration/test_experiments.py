"""Training from experiments, then everything that is done with a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import tensorflow as tf

from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.experiment import Blobs

from .conftest import Command, said

WARM = ("+experiment=warm", "train.steps=12")


@dataclass
class Trained:
    """Two runs of the same command, one after the other, in one folder."""

    command: Command
    first: CompletedProcess[str]
    second: CompletedProcess[str]


@pytest.fixture(scope="module")
def trained(make_command: Callable[[], Command]) -> Trained:
    command = make_command()
    return Trained(command, command.run(*WARM), command.run(*WARM))


def test_the_source_is_trained_first_and_only_once(trained: Trained) -> None:
    assert (trained.first.returncode, trained.second.returncode) == (0, 0)
    assert [line for line in trained.first.stdout.splitlines() if ": runs in" in line] == [
        "tiny: runs in runs/tiny/001",
        "warm: runs in runs/warm/001",
    ]
    assert "tiny: " not in trained.second.stdout
    assert trained.command.statuses("tiny") == ["FINISHED"]
    assert trained.command.statuses("warm") == ["FINISHED", "FINISHED"]


def test_training_the_source_on_the_way_changes_nothing(trained: Trained) -> None:
    objectives = [trained.command.record(f"warm/00{number}").objective for number in (1, 2)]
    assert objectives[0] == objectives[1]


def test_the_values_come_from_the_best_checkpoint_of_the_source(trained: Trained) -> None:
    best = trained.command.folder / "runs" / "tiny" / "001" / "best"
    (line,) = (line for line in trained.second.stdout.splitlines() if line.startswith("  body:"))
    assert f"6 variables (52 values) from {best}/model.ckpt-20 @ step 20" in line
    for run in trained.command.tracked("warm"):
        assert run.data.tags["runner.source.body"] == f"{best}/model.ckpt-20"


def test_nothing_but_the_run_is_on_the_screen(trained: Trained) -> None:
    assert said(trained.second) == []
    lines = trained.second.stdout.splitlines()
    (_, run) = trained.command.tracked("warm")
    assert lines[-3] == (
        f"results: sqlite:///{trained.command.folder / 'mlflow.db'}, run {run.info.run_id}"
    )
    assert lines[-2] == "files:   runs/warm/002"
    assert lines[-1].startswith("open:    ")
    # The program is quoted where the environment's path has a space in it.
    assert "mlflow ui --backend-store-uri" in lines[-1].replace("'", "")


def test_the_run_directory_holds_everything(trained: Trained) -> None:
    run = trained.command.folder / "runs" / "warm" / "001"
    assert {each.name for each in run.iterdir()} == {
        "best",
        "checkpoints",
        "config.yaml",
        "lock",
        "overrides.yaml",
        "plan.html",
        "plan.json",
        "plan.txt",
        "provenance.json",
        "run.json",
        "tracking",
    }
    assert trained.command.steps("warm/001") == [10, 12]
    assert trained.command.record("warm/001").status == "FINISHED"


def test_mlflow_holds_everything(trained: Trained) -> None:
    (run, _) = trained.command.tracked("warm")
    record = trained.command.record("warm/001")
    directory = TrackingDirectory(trained.command.folder / "runs" / "warm" / "001")
    position = directory.position(f"sqlite:///{trained.command.folder / 'mlflow.db'}")
    assert run.info.run_id == position.run_id
    assert run.info.run_name == "warm 001"
    parameters = run.data.params
    assert parameters["optimizer.learning_rate"] == "0.001"
    assert parameters["train.steps"] == "12"
    assert parameters["scaffolds.body.checkpoint"] == "experiment:tiny"
    tags = run.data.tags
    assert tags["runner.overrides"] == " ".join(WARM)
    assert tags["runner.run_dir"] == str(trained.command.folder / "runs" / "warm" / "001")
    assert {"runner.host", "runner.command", "runner.fingerprint"} <= set(tags)
    assert "mlflow.parentRunId" not in tags
    client = trained.command.client()
    steps = {
        name: [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert steps == {
        "train/loss": [5, 10],
        "train/accuracy": [5, 10],
        "train/learning_rate": [5, 10],
        "validation/loss": [10, 12],
        "validation/accuracy": [10, 12],
    }
    assert record.objective == min(
        metric.value for metric in client.get_metric_history(run.info.run_id, "validation/loss")
    )
    artifacts = Path(run.info.artifact_uri.removeprefix("file://").replace("%20", " "))
    kept = {str(each.relative_to(artifacts)) for each in artifacts.rglob("*") if each.is_file()}
    best = json.loads((artifacts / "best" / "best.json").read_text())["step"]
    assert kept == {
        "config.yaml",
        "overrides.yaml",
        "plan.html",
        "plan.json",
        "plan.txt",
        "provenance.json",
        "checkpoints/provenance.json",
        "best/provenance.json",
        "checkpoints/model.ckpt-12.index",
        "checkpoints/model.ckpt-12.data-00000-of-00001",
        "best/best.json",
        "best/checkpoint",
        f"best/model.ckpt-{best}.index",
        f"best/model.ckpt-{best}.data-00000-of-00001",
    }


def test_the_best_checkpoint_is_evaluated_into_the_same_run(trained: Trained) -> None:
    done = trained.command.run(*WARM, "mode=evaluate")
    assert done.returncode == 0, done.stderr
    assert "runs/warm/002/best/model.ckpt-12: test  loss" in done.stdout
    (first, second) = trained.command.tracked("warm")
    assert (first.info.status, second.info.status) == ("FINISHED", "FINISHED")
    assert {"test/loss", "test/accuracy"} <= set(second.data.metrics)
    assert not {"test/loss", "test/accuracy"} & set(first.data.metrics)
    shown = float(done.stdout.split("test  loss ")[1].split()[0])
    assert second.data.metrics["test/loss"] == pytest.approx(shown, rel=1e-3)


def test_the_best_checkpoint_is_exported_and_served(trained: Trained) -> None:
    done = trained.command.run(*WARM, "mode=export")
    assert done.returncode == 0, done.stderr
    run = trained.command.folder / "runs" / "warm" / "002"
    served = tf.saved_model.load(str(run / "export")).signatures["serving_default"]
    reader = tf.train.load_checkpoint(str(run / "best"))
    (features, _), *_ = Blobs().test().as_numpy_iterator()

    def dense(values: np.ndarray, name: str) -> np.ndarray:
        product = values @ reader.get_tensor(f"{name}/kernel")
        return np.asarray(product + reader.get_tensor(f"{name}/bias"))

    hidden = dense(features, "body/dense") - reader.get_tensor("body/norm/moving_mean")
    hidden /= np.sqrt(reader.get_tensor("body/norm/moving_variance") + 1e-3)
    hidden = hidden * reader.get_tensor("body/norm/gamma") + reader.get_tensor("body/norm/beta")
    expected = dense(dense(hidden, "extra"), "head")
    outputs = served(features=tf.constant(features))["outputs"].numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)

    # The model is with the run in MLflow, and is registered afterwards without a second export.
    client, run_id = trained.command.client(), trained.command.tracked("warm")[1].info.run_id
    outputs_of_run = client.get_run(run_id).outputs
    assert outputs_of_run is not None
    (kept,) = outputs_of_run.model_outputs
    assert f"model:   models:/{kept.model_id}" in done.stdout
    again = trained.command.run(*WARM, "mode=export")
    assert (again.returncode, again.stdout) == (2, "")
    assert "export.register=NAME registers it as it is" in again.stderr
    naming = trained.command.run(
        *WARM, "mode=export", "export.register=warm net", "export.alias=champion"
    )
    assert naming.stdout == "model:   models:/warm net@champion\n"
    assert client.get_model_version_by_alias("warm net", "champion").run_id == run_id
    assert trained.command.statuses("warm") == ["FINISHED", "FINISHED"]


def test_a_plan_creates_nothing(command: Command) -> None:
    before = sorted(command.folder.rglob("*"))
    done = command.run("+experiment=warm", "mode=plan")
    assert (done.returncode, said(done)) == (0, [])
    assert "body: body/dense/kernel" in done.stdout
    assert "experiment:tiny (not trained yet)" in done.stdout
    assert sorted(path for path in command.folder.rglob("*") if path.suffix != ".lock") == before
    assert command.tracked("warm") == []


def test_a_plan_with_problems_ends_with_3_and_creates_nothing(command: Command) -> None:
    done = command.run(
        "+experiment=warm", "mode=plan", "tracking=none", "scaffolds.body.rename={body/: trunk/}"
    )
    assert done.returncode == 3
    assert "body/dense/kernel" in done.stdout
    assert "scaffolds.body: no tensors for 6 variables, body/dense/kernel" in done.stdout
    assert "none named trunk/dense/kernel" in done.stdout
    assert "runner: the plan has 1 problem, listed with it" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in command.folder.iterdir()] == ["mlflow.db"]
