"""The files that docs/cluster.md offers for other machines are sound as far as can be seen here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cluster.specification import resolve
from runner.schema import paths
from tests.tiny.configs import tiny

DOCS = Path(__file__).resolve().parents[2] / "docs"
SLURM = DOCS / "cluster" / "slurm.sh"


def slurm(folder: Path, nodes: int, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with stand-ins for Slurm's commands, and a python that shows TF_CONFIG."""
    programs = {
        "scontrol": f'for i in $(seq {nodes}); do echo "node$i"; done',
        "srun": f"while [[ $1 == --* ]]; do echo $1 >> {folder / 'options'}; shift; done\n"
        f'for i in $(seq 0 {nodes - 1}); do SLURM_PROCID=$i "$@" || exit; done',
        "python": 'echo "$TF_CONFIG"; echo "$@"',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["bash", str(SLURM), "+experiment=tiny", "name=two words"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_slurm_gives_every_task_its_place(tmp_path: Path) -> None:
    done = slurm(tmp_path, 5, PS="2")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert set(lines[1::2]) == {"-m runner +experiment=tiny name=two words"}
    found = [resolve(tiny(), {"TF_CONFIG": each}).cluster for each in lines[::2]]
    assert [(each.task.type, each.task.index) for each in found] == [
        ("ps", 0),
        ("ps", 1),
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
    ]
    assert found[0].addresses.worker == ["node4:2222", "node5:2222"]
    assert json.loads(lines[0])["cluster"]["chief"] == ["node3:2222"]
    # A signal comes to all tasks, and the first that ends must not take the chief with it.
    options = (tmp_path / "options").read_text().split()
    assert options == ["--kill-on-bad-exit=0", "--wait=60", "--label"]


def test_slurm_refuses_too_few_nodes(tmp_path: Path) -> None:
    done = slurm(tmp_path, 1)
    assert done.returncode == 2
    assert "slurm.sh: 1 nodes are too few for 1 parameter servers and a chief" in done.stderr


def test_the_tfjob_is_one_that_the_operator_and_the_runner_understand() -> None:
    job: dict[str, Any] = yaml.safe_load((DOCS / "cluster" / "tfjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    specs = job["spec"]["tfReplicaSpecs"]
    assert set(specs) == {"Chief", "Worker", "PS", "Evaluator"}
    assert specs["Chief"]["replicas"] == specs["Evaluator"]["replicas"] == 1
    known = set(paths())
    for spec in specs.values():
        (container,) = spec["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
        assert container["command"] == ["python", "-m", "runner"]
        keys = [each.partition("=")[0] for each in container["args"] if each[0] != "+"]
        assert set(keys) <= known


@pytest.mark.parametrize("key", sorted(set(re.findall(r"`(cluster\.[a-z_.]+)[=`]",
                                    (DOCS / "cluster.md").read_text()))))  # fmt: skip
def test_every_key_on_the_page_exists(key: str) -> None:
    assert key in set(paths())
