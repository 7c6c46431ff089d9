"""A chief does with its variables on parameter servers what a run does with its own.

The servers are real ones, in threads and processes of their own of TensorFlow's; other workers are
threads, or never come.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.cluster import chief
from runner.cluster.channel import Announcement, Channel, left_flag, released_flag
from runner.cluster.chief import Chief, serve
from runner.cluster.local import BEGUN, free_addresses
from runner.cluster.sessions import session_config
from runner.cluster.worker import run_worker
from runner.config.cluster_spec import Addresses, Cluster, Task
from runner.config.schema import (
    ClusterMode,
    RestorationConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import ClusterError, InterruptedRunError, UserCodeError
from runner.system.signals import Interruption
from runner.system.status import Status
from tests.support import runs
from tests.support.configs import LINEAR, OWN_GRAPH, program, tiny
from tests.support.runs import wait_for
from tests.unit.cluster.conftest import InProcess, Lines

# The variable of tests.samples.programs.lstm.
KERNEL = "encoder/lstm_cell/kernel"


@contextmanager
def servers(workers: int = 1, **changes: Any) -> Iterator[Cluster]:
    """Two parameter servers, which end when the block ends well; the chief's configuration.

    Other workers never come.
    """
    found = free_addresses(2 + workers)
    addresses = Addresses(found[2:3], found[3:], found[:2])
    cluster = Cluster(
        workers=workers, ps=2, addresses=addresses, grace_secs=0.1, max_wait_secs=30, **changes
    )
    threads = []
    for index in range(2):
        own = replace(cluster, task=Task("ps", index))
        arguments = (tiny(cluster=own), Lines().screen)
        threads.append(threading.Thread(target=serve, args=arguments, daemon=True))
        threads[-1].start()
    cluster.task = Task("chief", 0)
    try:
        yield cluster
    except BaseException:
        for index, address in enumerate(addresses.ps):
            release(index, address)
        raise
    finally:
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def release(index: int, address: str, flag: Callable[[int], Announcement] = released_flag) -> None:
    """Does for one of the servers what a chief does at its end."""
    config = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
    with tf.Graph().as_default():
        set_op = flag(index).set_op
        with tf.compat.v1.Session(f"grpc://{address}", config=config) as session:
            session.run(set_op)


@pytest.mark.soak
def test_partitioned_variables_are_warm_started_saved_and_resumed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BEGUN, str(tmp_path / "begun"))
    params = {"units": 2, "learning_rate": 0.01}
    changes = program("lstm", "counting", params, train={}, validation={"repeat": False})
    runs.run(tmp_path / "source", **changes, train=TrainConfig(steps=2))
    source = str(tmp_path / "source" / "001" / "checkpoints")
    changes |= {
        "scaffolds": {"all": ScaffoldConfig(VariablesConfig(["*"]), source)},
        "restoration": RestorationConfig(verify=True),
        "train": TrainConfig(steps=6, checkpoint_every=2),
    }
    runs.run(tmp_path / "whole", **changes)
    changes["params"] = {**params, "parts": 2}
    marker = str(tmp_path / "signalled")
    changes |= {"hooks": runs.disturbed("SignalOnce", step=3, marker=marker, number=15)}
    made = runs.directory(tmp_path / "cut")
    with pytest.raises(InterruptedRunError), servers() as cluster:
        runs.run(tmp_path / "cut", cluster=cluster, **changes)
    assert (tmp_path / "begun").exists()
    assert not made.load_record().trained
    for file in (made.plan, made.plan_json, made.plan_html):
        assert "/job:ps/task:1" in file.read_text()
    plan = {each["name"]: each for each in json.loads(made.plan_json.read_text())["variables"]}
    parts = [plan[f"{KERNEL}/part_{index}"] for index in range(2)]
    assert {part["device"] for part in parts} == {"/job:ps/task:0", "/job:ps/task:1"}
    assert {part["origin"] for part in parts} == {"checkpoint"}

    with servers() as cluster:
        lines = runs.run(tmp_path / "cut", cluster=cluster, **changes)
    assert lines[1] == "  restores this run's checkpoint, and reads no pretrained one"
    assert "cluster: trains from step 3" in lines
    for name in (KERNEL, f"{KERNEL}/Adam"):
        expected = runs.saved(tmp_path / "whole", name)
        found = runs.saved(tmp_path / "cut", name)
        assert found.shape == (6, 8)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    record = made.load_record()
    assert (record.status, record.trained) == (Status.FINISHED, True)

    # A chief that died after its servers had ended needs none.
    made.update(status=Status.RUNNING)
    chief, server = free_addresses(2)
    gone = replace(cluster, ps=1, addresses=Addresses([chief], [], [server]))
    lines = runs.run(tmp_path / "cut", cluster=gone, **changes)
    assert lines[2:4] == [
        "cluster: trained already, so that only the record is closed",
        "cluster: could not release the parameter servers, because ps 0 does not answer",
    ]
    assert made.load_record() == record
    # Or when they were still to hear of it.
    made.update(status=Status.RUNNING)
    with servers() as cluster:
        runs.run(tmp_path / "cut", cluster=cluster, **changes)
    assert made.load_record() == record


def test_a_chief_that_died_after_the_others_had_ended_needs_no_worker(tmp_path: Path) -> None:
    runs.run(tmp_path, **LINEAR)
    trained = runs.directory(tmp_path)
    record = trained.load_record()
    trained.update(status=Status.RUNNING)
    chief, worker = free_addresses(2)
    alone = Cluster(
        mode=ClusterMode.collective,
        workers=2,
        addresses=Addresses([chief], [worker], []),
        task=Task("chief", 0),
        max_wait_secs=1,
    )
    lines = runs.run(tmp_path, **LINEAR, cluster=alone)
    assert "cluster: trained already, so that only the record is closed" in lines
    assert trained.load_record() == record


def test_a_run_resumes_with_another_number_of_workers(tmp_path: Path) -> None:
    train = TrainConfig(steps=6, checkpoint_every=2)
    stop = runs.disturbed("FailOnce", step=5, marker=str(tmp_path / "failed"))
    changes: dict[str, Any] = {**LINEAR, "train": train, "hooks": stop}
    with pytest.raises(UserCodeError, match="the hook failed"), servers(2) as cluster:
        runs.run(tmp_path, cluster=cluster, **changes)
    assert runs.saved(tmp_path, "global_step") == 4  # The failing hook came before the save.
    lines = runs.run(tmp_path, **changes)
    assert lines[0] == f"tiny: resumes in {tmp_path / '001'}"
    assert (
        "input: begins with its first batch: model.ckpt-4 is of another number of workers, and "
        "batches are dealt out again"
    ) in lines
    assert runs.saved(tmp_path, "global_step") == 6


def test_a_model_fn_is_trained_by_two_tasks(tmp_path: Path) -> None:
    def input_fn(**arguments: Any) -> dict[str, Any]:
        return {"_target_": "tests.samples.programs.counting", **arguments}

    changes: dict[str, Any] = {
        **OWN_GRAPH,
        "model_fn": {"_target_": "tests.samples.programs.lstm"},
        "params": {"units": 2, "learning_rate": 0.01},
        "input_fns": {"train": input_fn(), "validation": input_fn(repeat=False)},
        "train": TrainConfig(steps=10, log_every=1),
        "run_dir": str(tmp_path),
    }
    lines = Lines()
    with servers(2) as cluster:
        of_worker = replace(cluster, task=Task("worker", 0), recovery_wait_secs=0.1)
        worker = tiny(cluster=of_worker, **changes)
        thread = threading.Thread(target=run_worker, args=(worker, lines.screen), daemon=True)
        thread.start()
        shown = runs.run(tmp_path, cluster=cluster, **changes)
        thread.join(30)
    assert lines()[-1] == "done"
    assert any(line.startswith("step ") for line in lines()), "the worker has trained too"
    assert any("validation  loss" in line for line in shown)
    assert runs.saved(tmp_path, "global_step") >= 10
    assert "/job:ps/task:1" in runs.directory(tmp_path).plan.read_text()


def test_the_chief_ends_the_training_when_a_worker_asks(
    in_process: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chief, "_RECEIVE_SECONDS", 0.0)
    found = in_process(2, 1)
    lines, asked = Lines(), list[bool]()
    with tf.Graph().as_default() as graph:
        channel = Channel(found.cluster)
    run: Any = SimpleNamespace(screen=lines.screen)
    hook = chief._TasksHook(channel, run, 1)
    config = session_config(found.cluster)
    with tf.compat.v1.Session(found.target("chief"), graph, config) as session:
        context = SimpleNamespace(session=session, request_stop=lambda: asked.append(True))
        hook.after_run(context, None)
        assert not asked
        channel.stop.set(session)
        hook.after_run(context, None)
    assert asked
    assert lines() == ["cluster: training stops because a worker asks for it"]


def test_a_server_that_is_gone_at_the_end_is_no_error() -> None:
    first, second = free_addresses(2)
    addresses = Addresses([first], [], [second])
    cluster = Cluster(ps=1, addresses=addresses, task=Task("chief", 0))
    config = tiny(cluster=cluster)
    leader, lines = Chief(config), Lines()
    run: Any = SimpleNamespace(
        directory=SimpleNamespace(path=Path(config.run_dir)),
        interruption=Interruption(),
        screen=lines.screen,
    )
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        leader.session_creator(run)
    with leader.session_scope(run):
        pass
    with pytest.raises(ValueError, match="the step failed"), leader.session_scope(run):
        raise ValueError("the step failed")
    late = tf.errors.DeadlineExceededError(None, None, "late")
    with (
        pytest.raises(ClusterError, match=r"ps 0 at .* does not answer"),
        leader.session_scope(run),
    ):
        raise late
    line = "cluster: could not release the parameter servers, because ps 0 does not answer"
    assert lines() == [line] * 3


def served(flag: Callable[[int], Announcement]) -> list[str]:
    """Serves in this thread, while another sends a signal and then sets a flag; returns lines."""
    lines = Lines()
    chief, server = free_addresses(2)
    cluster = Cluster(addresses=Addresses([chief], [], [server]), task=Task("ps", 0))

    def disturb() -> None:
        wait_for(lambda: "serves" in lines())
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: "continues to serve after a signal, until the chief has left" in lines())
        release(0, server, flag)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        serve(tiny(cluster=cluster), lines.screen)
    finally:
        thread.join()
    return lines()


def test_a_server_serves_after_a_signal_until_the_chief_has_left() -> None:
    with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        served(left_flag)
    assert served(released_flag)[-1] == "done"
