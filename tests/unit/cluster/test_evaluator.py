"""An evaluator follows a run for as long as there is one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.evaluator import (
    FollowedRun,
    Patience,
    _Link,
    evaluated_checkpoint,
    follow_checkpoints,
)
from runner.cluster.server import session_config
from runner.config.cluster_spec import free_addresses
from runner.config.schema import AddressesConfig, ClusterConfig
from runner.console import Screen
from runner.errors import ClusterError, InterruptedRunError
from runner.graph.build import build_graph
from runner.runs.run_directory import FINISHED, KILLED, RUNNING, RunDirectory, RunRecord
from tests.tiny import runs
from tests.tiny.configs import tiny
from tests.unit.cluster.conftest import InProcess


def make(container: Path, number: int, status: str, identity: str = "mine") -> RunDirectory:
    directory = RunDirectory(container / f"{number:03d}")
    directory.path.mkdir()
    directory.write(RunRecord("tiny", identity, status, {}))
    return directory


def test_the_run_of_the_chief_is_followed_to_its_end(tmp_path: Path) -> None:
    followed = FollowedRun(tmp_path, "mine")
    first = make(tmp_path, 1, RUNNING)
    make(tmp_path, 2, RUNNING, "another")
    assert (followed.look(None), followed.newest()) == (None, None)
    assert (followed.look("002"), followed.look("005")) == (None, None)
    assert followed.look("001") == RUNNING
    # Another command has begun it.
    third = make(tmp_path, 3, RUNNING)
    first.update(status=KILLED)
    assert (followed.look("001"), followed.look(None)) == (KILLED, KILLED)
    assert (followed.name, followed.directory and followed.directory.path) == ("001", first.path)
    # The chief is started anew.
    third.update(status=FINISHED)
    assert followed.look("003") == FINISHED
    assert followed.directory is not None
    assert followed.directory.path == third.path
    itself = FollowedRun(third.path, "mine")
    assert itself.look(".") == FINISHED


def test_metrics_of_a_run_that_is_over_are_not_sent(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(1, 1, evaluator=True)
    lines: list[str] = []
    link = _Link(tiny(cluster=servers.task("evaluator")), lines.append)
    with tf.Graph().as_default():
        channel = Channel(["evaluator"])
        with tf.compat.v1.Session(
            servers.target("chief"), config=session_config(servers.cluster)
        ) as session:
            link.send({"loss": 0.5}, 1, "001")  # To a server that is new.
            channel.lead(session, "001")
            link.send({"loss": 0.5}, 2, "001")
            channel.lead(session, "002")
            link.send({"loss": 0.5}, 3, "001")
            assert channel.receive(session) == [
                ("evaluator", step, {"validation/loss": 0.5}) for step in (1, 2)
            ]
    assert lines == [
        "step 3: these metrics are not recorded: the chief trains another run now",
    ]


class Signalling(Screen):
    """Sends this process a signal with each line."""

    def line(self, text: str) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_does_not_break_into_what_tensorflow_does(
    in_process: Callable[..., InProcess], tmp_path: Path
) -> None:
    runs.run(tmp_path)
    servers = in_process(1, 1, evaluator=True)
    with tf.Graph().as_default() as graph:
        channel = Channel(["evaluator"])
    target, config = servers.target("chief"), session_config(servers.cluster)
    with tf.compat.v1.Session(target, graph, config) as session:
        channel.lead(session, "001")
    evaluating = tiny(cluster=servers.task("evaluator"), run_dir=str(tmp_path))
    with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        follow_checkpoints(evaluating, Signalling())
    with tf.compat.v1.Session(target, graph, config) as session:
        ((task, step, _),) = channel.receive(session)
    assert (task, step) == ("evaluator", 20)


def test_a_server_that_is_gone_keeps_nobody_waiting() -> None:
    chief, server = free_addresses(2)
    cluster = ClusterConfig(addresses=AddressesConfig([chief], [], [server]), evaluator=True)
    lines: list[str] = []
    begun = time.monotonic()
    _Link(tiny(cluster=cluster), lines.append).send({"loss": 0.5}, 1, "001")
    assert time.monotonic() - begun < 5
    assert lines == ["step 1: these metrics are not recorded: ps 0 does not answer"]


def test_patience_ends_when_nobody_is_there_for_long() -> None:
    cluster = ClusterConfig(addresses=AddressesConfig(["a:1"], [], ["b:1"]), max_wait_secs=10)
    times: Iterator[float]
    followed = FollowedRun(Path("none"), "mine")
    patience = Patience(tiny(cluster=cluster), lambda: next(times))

    def look(now: float, status: str | None = RUNNING, *, answers: bool = True) -> None:
        nonlocal times
        times = iter([now, now])
        followed.status = status
        patience.look(answers=answers, run=followed)

    look(0, answers=False)
    look(9, KILLED)
    look(11)
    look(12, KILLED)
    look(21, None, answers=False)
    with pytest.raises(ClusterError, match=r"ps 0 at b:1 does not answer\n.*waited for 10 s"):
        look(22, answers=False)
    look(23, None)
    look(24, KILLED)
    with pytest.raises(ClusterError, match=r"the run is KILLED\n.*nobody has gone on .* for 10 s"):
        look(34, KILLED)


def test_a_checkpoint_that_is_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    runs.run(tmp_path)
    checkpoints = runs.directory(tmp_path).checkpoints
    built = build_graph(tiny(), "validation", train=False)
    result: Any = evaluated_checkpoint(built, str(checkpoints / "model.ckpt-20"))
    assert (result[0], set(result[1])) == (20, {"loss", "accuracy"})
    assert evaluated_checkpoint(built, str(checkpoints / "model.ckpt-15")) is None
    assert evaluated_checkpoint(built, str(checkpoints / "model.ckpt-20"), lambda: True) is None
    for file in checkpoints.glob("model.ckpt-10.data*"):
        file.unlink()
    with pytest.raises(Exception, match=r"model\.ckpt-10"):
        evaluated_checkpoint(built, str(checkpoints / "model.ckpt-10"))
