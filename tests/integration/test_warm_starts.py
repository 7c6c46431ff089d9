"""Experiments as processes: trained from their sources, known before, proven after, and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.forked import Forks

from .conftest import Command, finish, said

WARM = (
    "+experiment=warm",
    "train.steps=12",
    "restoration.verify=true",
    "restoration.initialize=remaining",
)
HEAD = "++scaffolds.head={variables: {include: ['head/*']}, checkpoint: 'experiment:tiny'}"


@dataclass
class Chain:
    """`tiny` is the source of `warm`, which is that of `third` through MLflow, beside `tiny`."""

    command: Command
    warm: CompletedProcess[str]
    third: CompletedProcess[str]

    @property
    def runs(self) -> Path:
        return self.command.folder / "runs"

    def provenance(self, place: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs / place / "provenance.json").read_text())
        return found


@pytest.fixture(scope="module")
def chain(make_command: Callable[[], Command], tmp_path_factory: pytest.TempPathFactory) -> Chain:
    command = make_command()
    warm = command.run(*WARM)
    assert warm.returncode == 0, warm.stderr
    (run,) = command.tracked("warm")
    body = f"scaffolds.body.checkpoint=runs:/{run.info.run_id}/best"
    few = ("train.steps=2", "train.evaluate_every=2")
    os.environ["RUNNER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        third = command.run("+experiment=warm", "name=third", body, HEAD, *few)
    finally:
        del os.environ["RUNNER_CACHE"]
    assert third.returncode == 0, third.stderr
    return Chain(command, warm, third)


def _line(done: CompletedProcess[str], start: str) -> str:
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(start))
    return line


def test_the_source_is_trained_first_and_only_once(chain: Chain) -> None:
    assert [line for line in chain.warm.stdout.splitlines() if ": runs in" in line] == [
        "tiny: runs in runs/tiny/001",
        "warm: runs in runs/warm/001",
    ]
    assert "tiny: " not in chain.third.stdout
    assert chain.command.statuses("tiny") == chain.command.statuses("warm") == ["FINISHED"]


def test_the_values_come_from_the_best_checkpoint_of_the_source(chain: Chain) -> None:
    best = chain.runs / "tiny" / "001" / "best"
    assert f"6 variables (52 values) from {best}/model.ckpt-20 @ step 20" in _line(
        chain.warm, "  body:"
    )
    (run,) = chain.command.tracked("warm")
    assert run.data.tags["runner.source.body"] == f"{best}/model.ckpt-20"
    from_mlflow = _line(chain.third, "  body:")
    assert "6 variables (52 values)" in from_mlflow
    assert "@ step 12" in from_mlflow
    assert f"from {best}/model.ckpt-20 @ step 20" in _line(chain.third, "  head:")


def test_nothing_but_the_run_is_on_the_screen(chain: Chain) -> None:
    assert said(chain.third) == []
    results, files, opening = chain.third.stdout.splitlines()[-3:]
    (run,) = chain.command.tracked("third")
    assert results == (
        f"results: sqlite:///{chain.command.folder / 'mlflow.db'}, run {run.info.run_id}"
    )
    assert files == "files:   runs/third/001"
    assert opening.startswith("open:    ")
    # The program is quoted where the environment's path has a space in it.
    assert "mlflow ui --backend-store-uri" in opening.replace("'", "")


def test_the_run_directory_holds_everything(chain: Chain) -> None:
    run = chain.runs / "warm" / "001"
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
    assert chain.command.steps("warm/001") == [10, 12]
    assert chain.command.record("warm/001").status == "FINISHED"


def test_mlflow_holds_everything(chain: Chain) -> None:
    (run,) = chain.command.tracked("warm")
    record = chain.command.record("warm/001")
    directory = TrackingDirectory(chain.runs / "warm" / "001")
    position = directory.position(f"sqlite:///{chain.command.folder / 'mlflow.db'}")
    assert run.info.run_id == position.run_id
    assert run.info.run_name == "warm 001"
    parameters = run.data.params
    assert parameters["optimizer.learning_rate"] == "0.001"
    assert parameters["train.steps"] == "12"
    assert parameters["scaffolds.body.checkpoint"] == "experiment:tiny"
    tags = run.data.tags
    assert tags["runner.overrides"] == " ".join(WARM)
    assert tags["runner.run_dir"] == str(chain.runs / "warm" / "001")
    assert {"runner.host", "runner.command", "runner.fingerprint"} <= set(tags)
    assert "mlflow.parentRunId" not in tags
    client = chain.command.client()
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


def test_an_exported_model_is_with_the_run_and_registered_afterwards(chain: Chain) -> None:
    done = chain.command.run(*WARM, "mode=export")
    client, (run,) = chain.command.client(), chain.command.tracked("warm")
    outputs = client.get_run(run.info.run_id).outputs
    assert outputs is not None
    (kept,) = outputs.model_outputs
    assert f"model:   models:/{kept.model_id}" in done.stdout
    naming = chain.command.run(
        *WARM, "mode=export", "export.register=warm net", "export.alias=champion"
    )
    assert naming.stdout == "model:   models:/warm net@champion\n"
    version = client.get_model_version_by_alias("warm net", "champion")
    assert version.run_id == run.info.run_id
    assert chain.command.statuses("warm") == ["FINISHED"]


def test_the_provenance_is_beside_every_checkpoint_and_leads_back(
    chain: Chain, forks: Forks
) -> None:
    places = [chain.provenance(f"third/001/{each}") for each in ("", "checkpoints", "best")]
    assert places[0] == places[1] == places[2]
    (warm,) = chain.command.tracked("warm")
    (piece,) = places[0]["variables"]["body/dense/kernel"]["pieces"]
    assert piece["run_id"] == warm.info.run_id
    assert (piece["tensors"], piece["step"]) == (["body/dense/kernel"], 12)
    assert piece["digest"].startswith("sha256:")
    assert "initializer" in places[0]["variables"]["extra/kernel"]
    (source,) = places[0]["sources"]["body"]
    assert source["provenance"] == chain.provenance("warm/001")
    (first,) = source["provenance"]["sources"]["body"]
    assert first["provenance"] == chain.provenance("tiny/001")
    assert first["run"]["run_id"] == chain.command.tracked("tiny")[0].info.run_id

    inspect = [sys.executable, "-m", "runner.inspect", "runs/third/001", "--provenance"]
    folder, pipe = chain.command.folder, subprocess.PIPE
    shown = finish(forks.start(inspect, cwd=folder, stdout=pipe, stderr=pipe)).stdout.splitlines()
    runs = [line.strip().split(" in ")[0] for line in shown if " in /" in line]
    assert runs == ["third", "warm", "tiny", "tiny"]


def test_the_digest_of_the_source_is_with_the_run(chain: Chain) -> None:
    (run,) = chain.command.tracked("warm")
    folder = chain.runs / "warm" / "001"
    digest = json.loads((folder / "plan.json").read_text())["sources"]["body"]["digest"]
    assert run.data.tags["runner.source.body.digest"] == digest
    for text in map(Path.read_text, (folder / "plan.txt", folder / "plan.html")):
        assert digest in text
    assert f"; {digest}" in chain.warm.stdout


def test_a_plan_with_problems_ends_with_3_and_creates_nothing(
    command: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "w.npz", allow_pickle=False, **{"body/dense/bias": np.zeros(4, np.float32)})
    (tmp_path / "page.h5").write_text("<html>404</html>")
    before = sorted(command.folder.iterdir())
    done = command.run(
        "+experiment=tiny",
        "mode=plan",
        f"++scaffolds.bias={{variables: {{include: [body/dense/bias]}}, checkpoint: {tmp_path}/w}}",
        f"++scaffolds.head={{variables: {{include: [head/*]}}, checkpoint: {tmp_path}/page.h5}}",
        "++scaffolds.kernel={variables: {include: [body/dense/kernel]}, "
        f"checkpoint: {tmp_path}/w.npz}}",
        "restoration.expect={head: all, nothing: all}",
    )
    assert done.returncode == 3, done.stderr
    for problem in (
        f"scaffolds.bias.checkpoint: there is no checkpoint at {tmp_path}/w\n",
        f"scaffolds.head.checkpoint: {tmp_path}/page.h5 is not a checkpoint of a known format",
        "scaffolds.kernel: no tensor 'body/dense/kernel'",
        "restoration.expect: 'nothing' concerns no variable",
    ):
        assert problem in done.stdout
    assert "bias: its checkpoint cannot be used" in done.stdout, "the table is shown"
    assert "kernel: 0 variables (0 values) from" in done.stdout
    assert "runner: the plan has 4 problems, listed with it" in done.stderr
    assert "Traceback" not in done.stderr
    # The follower, started at once, may have looked at the database and left its lock.
    lock = command.folder / "mlflow.db.lock"
    assert [each for each in sorted(command.folder.iterdir()) if each != lock] == before
