"""A chief does with its variables on parameter servers what a run does with its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.cluster.addresses import answers, free_addresses
from runner.cluster.channel import released_flag
from runner.cluster.chief import Chief
from runner.cluster.parameter_server import serve
from runner.cluster_config import AddressesConfig, ClusterConfig, TaskConfig
from runner.config import RestorationConfig, RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import ClusterError
from runner.interruption import Interruption
from runner.run_directory import FINISHED
from runner.screen import Screen
from tests.tiny import runs
from tests.tiny.configs import tiny


@contextmanager
def servers(workers: int = 1, **changes: Any) -> Iterator[ClusterConfig]:
    """Two parameter servers, which end when the block ends well; the chief's configuration.

    Other workers never come.
    """
    found = free_addresses(2 + workers)
    addresses = AddressesConfig(found[2:3], found[3:], found[:2])
    cluster = ClusterConfig(
        workers=workers, ps=2, addresses=addresses, max_wait_secs=30, grace_secs=0.1, **changes
    )
    threads = []
    for index in range(2):
        own = ClusterConfig(**{**vars(cluster), "task": TaskConfig("ps", index)})
        arguments: tuple[RunConfig, Screen] = (tiny(cluster=own), Screen())
        threads.append(threading.Thread(target=serve, args=arguments, daemon=True))
        threads[-1].start()
    cluster.task = TaskConfig("chief", 0)
    try:
        yield cluster
    except BaseException:
        for index, address in enumerate(addresses.ps):
            release(index, address)
        raise
    finally:
        for thread in threads:
            thread.join(20)
    for thread in threads:
        assert not thread.is_alive()


def release(index: int, address: str) -> None:
    """Does for one of the servers what a chief does at a good end."""
    config = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
    with tf.Graph().as_default():
        flag = released_flag(index).set
        with tf.compat.v1.Session(f"grpc://{address}", config=config) as session:
            session.run(flag)


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


def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    hooks = {
        f"stop_{step}": {
            "_target_": "tests.tiny.hooks.FailOnce",
            "step": step,
            "marker": str(tmp_path / f"failed_{step}"),
        }
        for step in (3, 5)
    }
    changes: dict[str, Any] = {"train": TrainConfig(steps=6, checkpoint_every=2), "hooks": hooks}
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(tmp_path, **changes)
    with pytest.raises(ValueError, match="the hook failed"), servers(2) as cluster:
        runs.run(tmp_path, cluster=cluster, **changes)
    assert runs.saved(tmp_path, "global_step") == 4
    lines = runs.run(tmp_path, **changes)
    assert lines[0] == f"tiny: resumes in {tmp_path / '001'}"
    assert (
        "input: begins with its first batch: model.ckpt-4 is of another number of workers, and "
        "batches are dealt out anew"
    ) in lines
    assert runs.saved(tmp_path, "global_step") == 6


def test_a_server_that_is_gone_at_the_end_is_no_error() -> None:
    (chief,), servers = free_addresses(1), free_addresses(1)
    addresses = AddressesConfig([chief], [], servers)
    cluster = ClusterConfig(ps=1, addresses=addresses, task=TaskConfig("chief", 0))
    leader = Chief(tiny(cluster=cluster), Interruption())
    leader.session_creator()
    lines: list[str] = []
    with leader.leading(lines.append):
        pass
    with pytest.raises(ValueError, match="the step failed"), leader.leading(lines.append):
        raise ValueError("the step failed")
    assert lines == ["cluster: no server hears that it may end, because of ps 0"] * 2


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
