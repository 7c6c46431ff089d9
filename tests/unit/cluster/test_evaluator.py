"""An evaluator follows a run for as long as there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.evaluator import FollowedRun, evaluated_checkpoint, follow_checkpoints
from runner.cluster.sessions import session_config
from runner.config.cluster_spec import Addresses, Cluster
from runner.config.schema import ClusterConfig
from runner.errors import ClusterError, InterruptedRunError
from runner.graph.build import build_graph
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.status import Status
from tests.support.configs import tiny
from tests.support.runs import Runs
from tests.unit.cluster.conftest import InProcess, Signalling


def make(container: Path, number: int, status: Status) -> RunDirectory:
    directory = RunDirectory(container / f"{number:03d}")
    directory.path.mkdir()
    directory.write(RunRecord("tiny", "fingerprint", status, {}))
    return directory


def test_the_run_of_the_chief_is_followed_to_its_end(tmp_path: Path) -> None:
    followed = FollowedRun(ClusterConfig(), tmp_path)

    def status(name: str | None) -> str | None:
        followed.update(name)
        return followed.status

    first, third = make(tmp_path, 1, Status.RUNNING), make(tmp_path, 3, Status.RUNNING)
    assert (status(None), followed.newest()) == (None, None)
    assert (status("005"), followed.newest()) == (None, None)
    assert status("001") == Status.RUNNING
    first.update(status=Status.KILLED)
    assert (status("001"), status(None)) == (Status.KILLED, Status.KILLED)
    assert (followed.name, followed.directory and followed.directory.path) == ("001", first.path)
    # The chief starts a new run.
    third.update(status=Status.FINISHED)
    assert status("003") == Status.FINISHED
    assert followed.directory is not None
    assert followed.directory.path == third.path
    itself = FollowedRun(ClusterConfig(), third.path)
    itself.update(".")
    assert itself.status == Status.FINISHED


def test_a_signal_does_not_break_into_what_tensorflow_does(
    in_process: Callable[..., InProcess], whole: Runs
) -> None:
    servers = in_process(1, 1, evaluator=True)
    with tf.Graph().as_default() as graph:
        channel = Channel(servers.cluster)
    target, config = servers.target("chief"), session_config(servers.cluster)
    with tf.compat.v1.Session(target, graph, config) as session:
        channel.run.set(session, "001")
    evaluating = tiny(cluster=servers.config("evaluator"), run_dir=str(whole.folder))
    with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        follow_checkpoints(evaluating, Signalling())
    with tf.compat.v1.Session(target, graph, config) as session:
        ((task, step, metrics),) = channel.receive(session)
    assert (task, step, set(metrics)) == (
        "evaluator",
        20,
        {"validation/loss", "validation/accuracy"},
    )


def test_an_evaluator_ends_that_has_nothing_to_follow_for_long() -> None:
    cluster = Cluster(addresses=Addresses(["a:1"], [], ["b:1"]), max_wait_secs=10)
    time = 0.0
    followed = FollowedRun(cluster, Path("none"), lambda: time)

    def check(now: float, status: str | None = Status.RUNNING, *, answers: bool = True) -> None:
        nonlocal time
        time, followed.status = now, status
        followed.check_presence(answers=answers)

    check(0, answers=False)
    check(9, Status.KILLED)
    check(11)
    check(12, Status.KILLED)
    check(21, None, answers=False)
    with pytest.raises(ClusterError, match=r"ps 0 at b:1 does not answer\n.*waited for 10 s"):
        check(22, answers=False)
    check(23, None)
    check(24, Status.KILLED)
    with pytest.raises(
        ClusterError, match=r"the run is KILLED\n.*no chief has resumed it for 10 s"
    ):
        check(34, Status.KILLED)


def test_a_checkpoint_that_is_removed_meanwhile_is_passed_over(finished: Runs) -> None:
    checkpoints = finished.directory().checkpoints
    built = build_graph(tiny(), "validation", train=False)
    result: Any = evaluated_checkpoint(built, str(checkpoints / "model.ckpt-20"))
    assert (result[0], set(result[1])) == (20, {"loss", "accuracy"})
    assert evaluated_checkpoint(built, str(checkpoints / "model.ckpt-15")) is None
    assert evaluated_checkpoint(built, str(checkpoints / "model.ckpt-20"), lambda: True) is None
    for file in checkpoints.glob("model.ckpt-10.data*"):
        file.unlink()
    with pytest.raises(Exception, match=r"model\.ckpt-10"):
        evaluated_checkpoint(built, str(checkpoints / "model.ckpt-10"))
