"""A chief does with its variables on parameter servers what a run does with its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.cluster.addresses import answers, free_addresses
from runner.cluster.parameter_server import serve
from runner.cluster_config import AddressesConfig, ClusterConfig, TaskConfig
from runner.config import RestorationConfig, RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import ClusterError
from runner.run_directory import FINISHED
from runner.screen import Screen
from tests.tiny import runs
from tests.tiny.configs import tiny


@contextmanager
def servers(**changes: Any) -> Iterator[ClusterConfig]:
    """Two parameter servers, which end when the block ends well; the chief's configuration."""
    found = free_addresses(3)
    addresses = AddressesConfig(found[:1], [], found[1:])
    cluster = ClusterConfig(ps=2, addresses=addresses, max_wait_secs=30, **changes)
    threads = []
    for index in range(2):
        own = ClusterConfig(**{**vars(cluster), "task": TaskConfig("ps", index)})
        arguments: tuple[RunConfig, Screen] = (tiny(cluster=own), Screen())
        threads.append(threading.Thread(target=serve, args=arguments, daemon=True))
        threads[-1].start()
    cluster.task = TaskConfig("chief", 0)
    yield cluster
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    runs.run(folder)
    return folder


def test_a_warm_start_gives_the_servers_the_values_of_the_source(
    source: Path, tmp_path: Path
) -> None:
    scaffold = ScaffoldConfig(
        VariablesConfig(["body/dense/*"]), str(source / "001" / "checkpoints"), trainable=False
    )
    with servers() as cluster:
        lines = runs.run(
            tmp_path,
            cluster=cluster,
            scaffolds={"body": scaffold},
            restoration=RestorationConfig(verify=True),
            train=TrainConfig(steps=4, evaluate_every=2, checkpoint_every=2),
        )
    assert any(line.startswith("  body: 2 variables") for line in lines)
    for name in ("body/dense/kernel", "body/dense/bias"):
        np.testing.assert_array_equal(runs.saved(tmp_path, name), runs.saved(source, name))
    assert runs.saved(tmp_path, "global_step") == 4
    made = runs.directory(tmp_path)
    for file in (made.plan, made.plan_json, made.plan_html):
        assert "/job:ps/task:1" in file.read_text()
    assert runs.directory(tmp_path).require().status == FINISHED


def test_a_run_goes_on_from_its_own_checkpoint_on_fresh_servers(tmp_path: Path) -> None:
    train = TrainConfig(steps=6, checkpoint_every=2, ema_decay=0.9, accumulate=2)
    stop = {"_target_": "tests.tiny.hooks.FailOnce", "step": 4, "marker": str(tmp_path / "failed")}
    changes: dict[str, Any] = {"train": train, "hooks": {"stop": stop}}
    with pytest.raises(ValueError, match="the hook failed"), servers() as cluster:
        runs.run(tmp_path, cluster=cluster, **changes)
    with servers() as cluster:
        lines = runs.run(tmp_path, cluster=cluster, **changes)
    assert lines[:2] == [
        f"tiny: resumes in {tmp_path / '001'}",
        "  own checkpoint: pretrained sources not read",
    ]
    assert "cluster: trains from step 2" in lines  # The failing hook came before the save.
    assert runs.saved(tmp_path, "global_step") == 6


def test_servers_that_do_not_answer_end_the_run(tmp_path: Path) -> None:
    found = free_addresses(3)
    cluster = ClusterConfig(
        ps=2,
        addresses=AddressesConfig(found[:1], [], found[1:]),
        task=TaskConfig("chief", 0),
        max_wait_secs=0.3,
        recovery_wait_secs=0.1,
    )
    with pytest.raises(ClusterError, match=f"ps 0 at {found[1]}, ps 1 at {found[2]} do not answer"):
        runs.run(tmp_path, cluster=cluster)
    assert answers(found[0])


def test_cut_variables_are_warm_started_saved_and_resumed_as_a_whole(tmp_path: Path) -> None:
    model = {"_target_": "tests.tiny.odd.PlainModel"}
    runs.run(tmp_path / "source", model=model, train=TrainConfig(steps=2))
    source = str(tmp_path / "source" / "001" / "checkpoints")
    changes: dict[str, Any] = {
        "model": model,
        "scaffolds": {"all": ScaffoldConfig(VariablesConfig(["plain"]), source)},
        "restoration": RestorationConfig(verify=True),
        "train": TrainConfig(steps=6, checkpoint_every=2),
    }
    runs.run(tmp_path / "whole", **changes)
    marker = str(tmp_path / "failed")
    stop = {"_target_": "tests.tiny.hooks.FailOnce", "step": 5, "marker": marker}
    changes |= {"hooks": {"stop": stop}}
    cut = {"partition_bytes": 32}
    with pytest.raises(ValueError, match="the hook failed"), servers(**cut) as cluster:
        runs.run(tmp_path / "cut", cluster=cluster, **changes)
    made = runs.directory(tmp_path / "cut")
    held = {each["name"]: each for each in json.loads(made.plan_json.read_text())["variables"]}
    parts = [held[f"plain/part_{index}"] for index in range(2)]
    assert {each["device"] for each in parts} == {"/job:ps/task:0", "/job:ps/task:1"}
    assert {each["origin"] for each in parts} == {"checkpoint"}
    with servers(**cut) as cluster:
        lines = runs.run(tmp_path / "cut", cluster=cluster, **changes)
    assert "cluster: trains from step 4" in lines
    for name in ("plain", "plain/Adam"):
        expected = runs.saved(tmp_path / "whole", name)
        found = runs.saved(tmp_path / "cut", name)
        assert found.shape == (8, 2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
