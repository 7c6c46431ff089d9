"""The files that docs/how-to offers for other machines are sound as far as can be seen here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from hydra import compose

from runner.config.cluster import resolve_cluster
from runner.config.cluster_spec import addresses_of, task_of
from runner.config.keys import paths
from runner.config.schema import RunConfig
from runner.config.validation import validate
from tests.support.composing import composing
from tests.support.configs import tiny

DOCS = Path(__file__).resolve().parents[2] / "docs"
SLURM = DOCS / "how-to" / "slurm.sh"


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
    found = [resolve_cluster(tiny(), {"TF_CONFIG": each}).cluster for each in lines[::2]]
    assert [(task_of(each).type, task_of(each).index) for each in found] == [
        ("ps", 0),
        ("ps", 1),
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
    ]
    assert addresses_of(found[0]).worker == ["node4:2222", "node5:2222"]
    assert json.loads(lines[0])["cluster"]["chief"] == ["node3:2222"]
    # A signal comes to all tasks, and the first that ends must not take the chief with it.
    options = (tmp_path / "options").read_text().split()
    assert options == ["--kill-on-bad-exit=0", "--wait=60", "--label"]


def test_slurm_may_start_an_evaluator(tmp_path: Path) -> None:
    done = slurm(tmp_path, 4, EVALUATOR="1")
    assert done.stderr == ""
    found = [
        resolve_cluster(tiny(), {"TF_CONFIG": each}).cluster
        for each in done.stdout.splitlines()[::2]
    ]
    types = [(task_of(each).type, task_of(each).index) for each in found]
    assert types == [("ps", 0), ("chief", 0), ("worker", 0), ("evaluator", 0)]
    assert {each.evaluator for each in found} == {True}
    assert addresses_of(found[0]).worker == ["node3:2222"]


def test_slurm_refuses_too_few_nodes(tmp_path: Path) -> None:
    done = slurm(tmp_path, 2, EVALUATOR="1")
    assert done.returncode == 2
    expected = "slurm.sh: 2 nodes are too few for 1 parameter servers, 1 evaluators and a chief"
    assert expected in done.stderr


def test_the_script_for_slurm_is_sound_to_shellcheck() -> None:
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, SLURM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def operator_tf_config(specs: dict[str, Any], kind: str, index: int) -> dict[str, str]:
    """Returns the `TF_CONFIG` that the training operator sets in a pod: all but evaluators."""
    cluster = {
        each.lower(): [
            f"lstm-cnn-{each.lower()}-{number}.default.svc:2222"
            for number in range(spec["replicas"])
        ]
        for each, spec in specs.items()
        if each != "Evaluator"
    }
    task = {"type": kind.lower(), "index": index}
    text = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
    return {"TF_CONFIG": text}


def test_the_tfjob_is_one_that_the_operator_and_the_runner_understand(tmp_path: Path) -> None:
    job: dict[str, Any] = yaml.safe_load((DOCS / "how-to" / "tfjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    specs = job["spec"]["tfReplicaSpecs"]
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    tasks = []
    with composing(tmp_path / "conf"):
        for kind, spec in specs.items():
            assert spec["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
            pod = spec["template"]["spec"]
            (container,) = pod["containers"]
            # By these names the operator finds the container and the port for TF_CONFIG.
            assert (container["name"], container["ports"][0]["name"]) == (
                "tensorflow",
                "tfjob-port",
            )
            assert container["image"]
            assert container["command"] == ["python", "-m", "runner"]
            volumes = {each["name"] for each in pod["volumes"]}
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
            # The command of the container, composed and checked as in it.
            config = validate(compose("config", container["args"]))
            mounted = [each["mountPath"] for each in container["volumeMounts"]]
            assert any(config.run_dir.startswith(f"{each}/") for each in mounted)
            for index in range(spec["replicas"]):
                given = operator_tf_config(specs, kind, index)
                tasks.append(resolve_cluster(config, given).cluster)
    assert [(task_of(each).type, task_of(each).index) for each in tasks] == [
        ("chief", 0),
        *(("worker", index) for index in range(3)),
        *(("ps", index) for index in range(2)),
        ("evaluator", 0),
    ]
    assert {(each.workers, each.ps, each.evaluator) for each in tasks} == {(4, 2, True)}


def test_every_key_on_the_page_exists() -> None:
    page = (DOCS / "reference" / "clusters.md").read_text()
    keys = set(re.findall(r"`(cluster\.[a-z_.]+)[=`]", page))
    assert len(keys) > 5
    assert keys - set(paths(RunConfig)) == set()
