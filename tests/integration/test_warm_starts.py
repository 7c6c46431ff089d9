"""Experiments as processes: trained from their sources, known before, proven after, and served."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runner.tracking.tracking_directory import TrackingDirectory
from tests.conformance.goldens import save_npz
from tests.support.forked import Forks

from .conftest import Command, finish, said

if TYPE_CHECKING:
    from mlflow.entities import Run

WARM = (
    "+experiment=warm",
    "train.steps=12",
    "restoration.verify=true",
    "restoration.initialize=remaining",
)


@dataclass
class Warm:
    """A run of `warm`, whose source `tiny` was trained before."""

    command: Command
    done: CompletedProcess[str]
    record: Run

    @property
    def runs(self) -> Path:
        return self.command.folder / "runs"

    def provenance(self, place: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs / place / "provenance.json").read_text())
        return found


@pytest.fixture(scope="module")
def warm(make_command: Callable[[], Command]) -> Warm:
    command = make_command()
    done = command.run(*WARM)
    assert (done.returncode, said(done)) == (0, []), done.stderr
    (record,) = command.tracked("warm")
    return Warm(command, done, record)


def _line(done: CompletedProcess[str], start: str) -> str:
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(start))
    return line


def test_the_values_come_from_the_best_checkpoint_of_a_source_trained_before(warm: Warm) -> None:
    assert [line for line in warm.done.stdout.splitlines() if ": runs in" in line] == [
        "tiny: runs in runs/tiny/001",
        "warm: runs in runs/warm/001",
    ]
    assert warm.command.statuses("tiny") == warm.command.statuses("warm") == ["FINISHED"]
    best = f"{warm.runs}/tiny/001/best/model.ckpt-20"
    line = _line(warm.done, "  body:")
    assert f"6 variables (52 values) from {best} @ step 20" in line
    assert warm.record.data.tags["runner.source.body"] == best
    folder = warm.runs / "warm" / "001"
    digest = json.loads((folder / "plan.json").read_text())["sources"]["body"]["digest"]
    assert line.endswith(f"; {digest[:15]}")
    assert warm.record.data.tags["runner.source.body.digest"] == digest
    assert digest in (folder / "plan.txt").read_text()
    assert digest in (folder / "plan.html").read_text()


def test_the_last_lines_lead_to_the_results(warm: Warm) -> None:
    best, time, results, files, opening, page, test, export = warm.done.stdout.splitlines()[-8:]
    assert re.fullmatch(r"best:    validation/loss [\d.]+ at step 1[02]", best)
    assert re.fullmatch(r"time:    (\d+ min )?\d+ s", time)
    folder = warm.runs / "warm" / "001"
    assert shlex.split(test)[-2:] == ["mode=evaluate", f'run_dir="{folder}"']
    assert shlex.split(export)[-2:] == ["mode=export", f'run_dir="{folder}"']
    # A source suggests nothing.
    assert warm.done.stdout.count("mode=export") == 1
    described = warm.record.data.tags["mlflow.note.content"]
    assert described.startswith(f"Best: **{best.split(maxsplit=1)[1]}**\n\n- ")
    assert "\n- body: 6 variables" in described
    assert f"```sh\n{warm.record.data.tags['runner.command']}\n```" in described
    database = f"sqlite:///{warm.command.folder / 'mlflow.db'}"
    assert results == f"results: {database}, run {warm.record.info.run_id}"
    assert files == "files:   runs/warm/001"
    assert opening.startswith("open:    ")
    place = f"experiments/{warm.record.info.experiment_id}/runs/{warm.record.info.run_id}"
    assert page == f"page:    http://127.0.0.1:5000/#/{place}?workflowType=machine_learning"
    # The program is quoted where the environment's path has a space in it.
    assert "mlflow ui --backend-store-uri" in opening.replace("'", "")


def test_the_run_directory_holds_everything(warm: Warm) -> None:
    run = warm.runs / "warm" / "001"
    assert {path.name for path in run.iterdir()} == {
        "best",
        "checkpoints",
        "config.yaml",
        "figures",
        "lock",
        "overrides.yaml",
        "plan.html",
        "plan.json",
        "plan.txt",
        "provenance.json",
        "run.json",
        "tracking",
    }
    assert warm.command.steps("warm/001") == [10, 12]
    assert warm.command.record("warm/001").status == "FINISHED"


def test_mlflow_holds_everything(warm: Warm) -> None:
    run, record = warm.record, warm.command.record("warm/001")
    directory = TrackingDirectory(warm.runs / "warm" / "001")
    position = directory.position(f"sqlite:///{warm.command.folder / 'mlflow.db'}")
    assert run.info.run_id == position.run_id
    assert run.info.run_name == "warm 001"
    parameters = run.data.params
    assert parameters["optimizer.learning_rate"] == "0.001"
    assert parameters["train.steps"] == "12"
    assert "train.accumulate" not in parameters  # It has its default.
    assert parameters["scaffolds.body.checkpoint"] == "experiment:tiny"
    tags = run.data.tags
    assert tags["runner.overrides"] == " ".join(WARM)
    assert tags["runner.run_dir"] == str(warm.runs / "warm" / "001")
    assert {"runner.host", "runner.command", "runner.fingerprint"} <= set(tags)
    assert "mlflow.parentRunId" not in tags
    client = warm.command.client()
    steps = {
        name: [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert steps == {
        "train/loss": [5, 10],
        "train/accuracy": [5, 10],
        "train/learning_rate": [5, 10],
        "train_mean/loss": [10],
        "train_mean/accuracy": [10],
        "validation/loss": [10, 12],
        "validation/accuracy": [10, 12],
    }
    assert record.objective == min(
        metric.value for metric in client.get_metric_history(run.info.run_id, "validation/loss")
    )
    artifacts = Path(run.info.artifact_uri.removeprefix("file://").replace("%20", " "))
    kept = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
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
        "figures/learning_curves.png",
        "figures/sources_of_weights.png",
        "checkpoints/model.ckpt-12.index",
        "checkpoints/model.ckpt-12.data-00000-of-00001",
        "best/best.json",
        "best/checkpoint",
        f"best/model.ckpt-{best}.index",
        f"best/model.ckpt-{best}.data-00000-of-00001",
    }


@pytest.mark.soak
def test_an_exported_model_is_registered_afterwards_and_a_source_of_warm_starts(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    done = warm.command.run(*WARM, "mode=export")
    client = warm.command.client()
    run = warm.record
    outputs = client.get_run(run.info.run_id).outputs
    assert outputs is not None
    (kept,) = outputs.model_outputs
    assert f"model:   models:/{kept.model_id}" in done.stdout
    naming = warm.command.run(
        *WARM, "mode=export", "export.register=warm net", "export.alias=champion"
    )
    assert naming.stdout.splitlines()[-1] == "model:   models:/warm net@champion"
    version = client.get_model_version_by_alias("warm net", "champion")
    assert version.run_id == run.info.run_id
    assert warm.command.statuses("warm") == ["FINISHED"]
    for source, mode in (
        ("models:/warm net@champion", "train"),
        (f"runs:/{run.info.run_id}/model", "plan"),
    ):
        again = warm.command.run(
            *WARM, "name=again", f"mode={mode}", f"scaffolds.body.checkpoint='{source}'"
        )
        assert re.search(r"body: 6 variables .*/saved_model; ", again.stdout), again


def test_the_provenance_is_beside_every_checkpoint_and_leads_back(warm: Warm, forks: Forks) -> None:
    places = [warm.provenance(f"warm/001/{each}") for each in ("", "checkpoints", "best")]
    assert places[0] == places[1] == places[2]
    (tiny,) = warm.command.tracked("tiny")
    source_tensor = places[0]["variables"]["body/dense/kernel"]["source_tensor"]
    assert source_tensor["run_id"] == tiny.info.run_id
    assert (source_tensor["tensors"], source_tensor["step"]) == (["body/dense/kernel"], 20)
    assert source_tensor["digest"].startswith("sha256:")
    assert "initializer" in places[0]["variables"]["head/kernel"]
    (source,) = places[0]["sources"]["body"]
    assert source["provenance"] == warm.provenance("tiny/001")

    inspect = [sys.executable, "-m", "runner", "inspect", "runs/warm/001", "--provenance"]
    folder, pipe = warm.command.folder, subprocess.PIPE
    shown = finish(forks.start(inspect, cwd=folder, stdout=pipe, stderr=pipe)).stdout.splitlines()
    runs = [line.strip().split(" in ")[0] for line in shown if " in /" in line]
    assert runs == ["warm", "tiny"]


def test_a_plan_with_problems_ends_with_3_and_creates_nothing(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    save_npz(tmp_path / "w.npz", **{"extra/bias": np.zeros(4, np.float32)})

    def scaffold(name: str, variable: str, checkpoint: str) -> str:
        included = f"variables: {{include: ['{variable}']}}"
        return f"++scaffolds.{name}={{{included}, checkpoint: '{checkpoint}'}}"

    before = sorted(warm.command.folder.rglob("*"))
    done = warm.command.run(
        "+experiment=warm",
        "name=third",
        "mode=plan",
        f"scaffolds.body.checkpoint=runs:/{warm.record.info.run_id}/best",
        scaffold("head", "head/*", "experiment:tiny"),
        scaffold("bias", "extra/bias", f"{tmp_path}/w"),
        scaffold("kernel", "extra/kernel", f"{tmp_path}/w.npz"),
        "restoration.expect={head: all, nothing: all}",
    )
    assert done.returncode == 3, done.stderr
    for problem in (
        f"scaffolds.bias.checkpoint: there is no checkpoint at {tmp_path}/w\n",
        "scaffolds.kernel: no tensor 'extra/kernel'",
        "restoration.expect: 'nothing' concerns no variable",
    ):
        assert problem in done.stdout
    assert "bias: its checkpoint cannot be used" in done.stdout, "the table is shown"
    assert "kernel: 0 variables (0 values) from" in done.stdout
    assert "runner: the plan has 3 problems, listed with it" in done.stderr
    assert "Traceback" not in done.stderr
    # A run in MLflow is a source, and so is an experiment, which is not trained a second time.
    assert re.search(r"^body: 6 variables .* @ step 12;", done.stdout, re.MULTILINE)
    best = f"{warm.runs}/tiny/001/best/model.ckpt-20"
    assert f" from {best} @ step 20" in _line(done, "head:")
    assert sorted(warm.command.folder.rglob("*")) == before
