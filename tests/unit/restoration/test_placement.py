"""What each parameter server holds is said in words, and in every form of the plan."""

from __future__ import annotations

import json
from pathlib import Path

from runner.config.choices import Mode, PlanFormat
from runner.config.schema import ClusterConfig, PlanConfig
from runner.restoration.report import VariablePlacement
from tests.tiny import runs
from tests.tiny.plans import plan, variable

SERVERS = ["/job:ps/task:0", "/job:ps/task:1"]


def test_each_server_is_told_with_what_it_holds() -> None:
    made = plan([variable("a"), variable("b", (5,)), variable("c")], {}, {})
    placement = VariablePlacement("by_size", {"a": SERVERS[0], "b": SERVERS[1], "c": SERVERS[0]})
    assert placement.lines(made, full=False) == [
        "placement on the cluster (by_size):",
        "  /job:ps/task:0: 2 variables, 48 bytes",
        "  /job:ps/task:1: 1 variable, 20 bytes",
    ]
    assert placement.lines(made, full=True)[2:4] == ["    a  24 bytes", "    c  24 bytes"]


def test_every_form_of_the_plan_shows_it(tmp_path: Path) -> None:
    def shown(form: PlanFormat, cluster: ClusterConfig) -> list[str]:
        return runs.run(tmp_path, mode=Mode.plan, cluster=cluster, plan=PlanConfig(format=form))

    cluster, alone = ClusterConfig(local=True, workers=2, ps=2), ClusterConfig()
    table = shown(PlanFormat.table, cluster)
    assert [line.strip()[:14] for line in table if "/job:ps" in line] == SERVERS
    text = shown(PlanFormat.json, cluster)
    found = {each["name"]: each["device"] for each in json.loads("\n".join(text))["variables"]}
    assert found["global_step"] == SERVERS[0]
    assert set(found.values()) == set(SERVERS)
    page = "\n".join(shown(PlanFormat.html, cluster))
    assert "Placement on the cluster (round_robin)" in page
    assert page.count("<code>global_step</code>") == 1
    for form in PlanFormat:
        assert "/job:ps" not in "\n".join(shown(form, alone))
