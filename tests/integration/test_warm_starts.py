"""Warm starts as processes: known before, proven after, followed back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny.forked import Forks

from .conftest import Command, finish, said

BODY = "++scaffolds.body={variables: {include: ['body/*']}, checkpoint: '%s'}"


@dataclass
class Chain:
    """`tiny` trained as the source of `warm`, which is the source of `third` through MLflow."""

    command: Command
    warm: subprocess.CompletedProcess[str]
    third: subprocess.CompletedProcess[str]

    def provenance(self, place: str) -> dict[str, Any]:
        file = self.command.folder / "runs" / place / "provenance.json"
        found: dict[str, Any] = json.loads(file.read_text())
        return found


@pytest.fixture(scope="module")
def chain(make_command: Callable[[], Command], tmp_path_factory: pytest.TempPathFactory) -> Chain:
    command = make_command()
    proof = ("restoration.verify=true", "restoration.initialize=remaining", "train.steps=12")
    warm = command.run("+experiment=warm", *proof)
    assert warm.returncode == 0, warm.stderr
    (run,) = command.tracked("warm")
    os.environ["RUNNER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        uri = f"runs:/{run.info.run_id}/best"
        third = command.run(
            "+experiment=tiny", "name=third", BODY % uri, "train.steps=2", "train.evaluate_every=2"
        )
    finally:
        del os.environ["RUNNER_CACHE"]
    return Chain(command, warm, third)


def test_a_run_in_mlflow_is_a_source(chain: Chain) -> None:
    assert chain.third.returncode == 0, chain.third.stderr
    assert said(chain.third) == []
    (line,) = (each for each in chain.third.stdout.splitlines() if each.startswith("  body:"))
    assert "6 variables (52 values)" in line
    assert "@ step 12" in line


def test_the_provenance_is_beside_every_checkpoint_and_leads_back(chain: Chain) -> None:
    places = [chain.provenance(f"third/001/{each}") for each in ("", "checkpoints", "best")]
    assert places[0] == places[1] == places[2]
    (warm,) = chain.command.tracked("warm")
    (piece,) = places[0]["variables"]["body/dense/kernel"]["pieces"]
    assert piece["run_id"] == warm.info.run_id
    assert (piece["tensors"], piece["step"]) == (["body/dense/kernel"], 12)
    assert piece["digest"].startswith("sha256:")
    assert "initializer" in places[0]["variables"]["head/kernel"]
    (source,) = places[0]["sources"]["body"]
    assert source["provenance"] == chain.provenance("warm/001")
    (first,) = source["provenance"]["sources"]["body"]
    assert first["provenance"] == chain.provenance("tiny/001")
    assert first["run"]["run_id"] == chain.command.tracked("tiny")[0].info.run_id


def test_the_chain_is_printed(chain: Chain, forks: Forks) -> None:
    process = forks.start(
        [sys.executable, "-m", "runner.inspect", "runs/third/001", "--provenance"],
        cwd=chain.command.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    done = finish(process)
    assert done.returncode == 0, done.stderr
    runs = [line.strip().split(" in ")[0] for line in done.stdout.splitlines() if " in /" in line]
    assert runs == ["third", "warm", "tiny"]


def test_the_plan_is_with_the_run(chain: Chain) -> None:
    (run,) = chain.command.tracked("warm")
    artifacts = {each.path for each in chain.command.client().list_artifacts(run.info.run_id)}
    assert {"plan.txt", "plan.json", "plan.html", "provenance.json"} <= artifacts
    beside = chain.command.client().list_artifacts(run.info.run_id, "checkpoints")
    assert "checkpoints/provenance.json" in {each.path for each in beside}
    folder = chain.command.folder / "runs" / "warm" / "001"
    plan = json.loads((folder / "plan.json").read_text())
    digest = plan["sources"]["body"]["digest"]
    assert run.data.tags["runner.source.body.digest"] == digest
    assert digest in (folder / "plan.txt").read_text()
    assert digest in (folder / "plan.html").read_text()
    assert f"; {digest}" in chain.warm.stdout


def test_the_plan_as_json_and_html_can_be_piped(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", allow_pickle=False, **{"body/dense/bias": np.zeros(4, np.float32)})
    changes = ["+experiment=tiny", "mode=plan", BODY % (tmp_path / "w.npz")]
    changes.append("++scaffolds.body.variables.include=[body/dense/bias]")
    done = command.run(*changes, "plan.format=json")
    assert (done.returncode, said(done)) == (0, [])
    plan = json.loads(done.stdout)
    assert plan["sound"] is True
    assert plan["sources"]["body"]["path"] == str(tmp_path / "w.npz")
    done = command.run(*changes, "plan.format=html", "restoration.expect={body: scratch}")
    assert done.returncode == 3
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "scratch" in done.stdout
    assert "the plan has 1 problem" in done.stderr
    assert not (command.folder / "runs").exists()


@pytest.mark.parametrize("mode", ["plan", "train"])
def test_a_missing_checkpoint_is_one_of_the_problems(
    command: Command, tmp_path: Path, mode: str
) -> None:
    np.savez(tmp_path / "w.npz", allow_pickle=False, **{"body/dense/bias": np.zeros(4, np.float32)})
    (tmp_path / "page.h5").write_text("<html>404</html>")
    before = sorted(command.folder.iterdir())
    done = command.run(
        "+experiment=tiny",
        f"mode={mode}",
        f"++scaffolds.bias={{variables: {{include: [body/dense/bias]}}, checkpoint: {tmp_path}/w}}",
        f"++scaffolds.head={{variables: {{include: [head/*]}}, checkpoint: {tmp_path}/page.h5}}",
        "++scaffolds.kernel={variables: {include: [body/dense/kernel]}, "
        f"checkpoint: {tmp_path}/w.npz}}",
        "restoration.expect={head: all, nothing: all}",
    )
    assert done.returncode == 3, done.stderr
    shown = done.stdout if mode == "plan" else done.stderr
    for problem in (
        f"scaffolds.bias.checkpoint: there is no checkpoint at {tmp_path}/w\n",
        f"scaffolds.head.checkpoint: {tmp_path}/page.h5 is not a checkpoint of a known format",
        "scaffolds.kernel: no tensor 'body/dense/kernel'",
        "restoration.expect: 'nothing' concerns no variable",
    ):
        assert problem in shown
    if mode == "plan":
        assert "bias: its checkpoint cannot be used" in shown, "the table is shown"
        assert "kernel: 0 variables (0 values) from" in shown
        assert "the plan has 4 problems" in done.stderr
    # The follower, started at once, may have looked at the database and left its lock.
    lock = command.folder / "mlflow.db.lock"
    assert [each for each in sorted(command.folder.iterdir()) if each != lock] == before


def test_a_changed_warm_start_is_refused_in_a_folder_of_its_own(
    command: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "w.npz", allow_pickle=False, **{"body/dense/bias": np.zeros(4, np.float32)})
    hook = f"{{_target_: tests.tiny.hooks.FailOnce, step: 13, marker: '{tmp_path / 'marker'}'}}"
    same = ["+experiment=tiny", "run_dir=mine", f"+hooks.disturb={hook}", "tracking=none"]
    assert command.run(*same).returncode == 1
    scaffold = BODY % (tmp_path / "w.npz")
    changed = [*same, scaffold, "++scaffolds.body.variables.include=[body/dense/bias]"]
    done = command.run(*changed)
    assert done.returncode == 2
    assert "the warm start has changed since mine/001 began, which is unfinished" in done.stderr
    assert "scaffolds.body: (absent) -> " in done.stderr
    assert "resume=never" in done.stderr
    planned = command.run(*changed, "mode=plan")
    assert (planned.returncode, planned.stderr) == (2, done.stderr), "the plan says the same"
    assert "body: body/dense/bias" in planned.stdout, "and is shown"
    assert command.run(*changed, "resume=never").returncode == 0
    assert sorted(each.name for each in (command.folder / "mine").glob("0*")) == ["001", "002"]
