"""What each parameter server holds is said in words."""

from __future__ import annotations

import json
from pathlib import Path

from runner.cluster.placement import placement_lines
from runner.cluster_config import ClusterConfig
from runner.config import Mode, PlanConfig, PlanFormat
from tests.tiny import runs
from tests.tiny.plans import variable


def test_each_server_is_told_with_what_it_holds() -> None:
    specs = [variable("a"), variable("b", (5,)), variable("c")]
    devices = {"a": "/job:ps/task:0", "b": "/job:ps/task:1", "c": "/job:ps/task:0"}
    assert placement_lines(specs, devices, "by_size", full=False) == [
        "placement on the cluster (by_size):",
        "  /job:ps/task:0: 2 variables, 48 bytes",
        "  /job:ps/task:1: 1 variables, 20 bytes",
    ]
    assert placement_lines(specs, devices, "by_size", full=True)[2:4] == [
        "    a  24 bytes",
        "    c  24 bytes",
    ]


def test_the_plan_shows_it(tmp_path: Path) -> None:
    cluster = ClusterConfig(local=True, workers=2, ps=2)
    lines = runs.run(tmp_path, mode=Mode.plan, cluster=cluster)
    assert [line.strip().partition(":")[0] for line in lines if "/job:ps" in line] == ["/job"] * 2
    text = runs.run(
        tmp_path, mode=Mode.plan, cluster=cluster, plan=PlanConfig(format=PlanFormat.json)
    )
    found = {each["name"]: each["device"] for each in json.loads("\n".join(text))["variables"]}
    assert found["global_step"] == "/job:ps/task:0"
    assert set(found.values()) == {"/job:ps/task:0", "/job:ps/task:1"}
    alone = runs.run(tmp_path, mode=Mode.plan, plan=PlanConfig(format=PlanFormat.json))
    assert "device" not in json.loads("\n".join(alone))["variables"][0]
