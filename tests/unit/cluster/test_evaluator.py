"""An evaluator follows a run for as long as there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.cluster.evaluator import FollowedRun, Patience, evaluated_checkpoint
from runner.cluster_config import AddressesConfig, ClusterConfig
from runner.errors import ClusterError
from runner.graph import build_graph
from runner.run_directory import FINISHED, KILLED, RUNNING, RunDirectory, RunRecord
from tests.tiny import runs
from tests.tiny.configs import tiny


def make(container: Path, number: int, status: str, identity: str = "mine") -> RunDirectory:
    directory = RunDirectory(container / f"{number:03d}")
    directory.path.mkdir()
    directory.write(RunRecord("tiny", identity, status, {}))
    return directory


def test_the_newest_run_that_goes_on_is_followed_to_its_end(tmp_path: Path) -> None:
    followed = FollowedRun(tmp_path, "mine")
    make(tmp_path, 1, FINISHED)
    make(tmp_path, 2, RUNNING, "another")
    assert (followed.look(), followed.newest()) == (None, None)
    third = make(tmp_path, 3, RUNNING)
    assert followed.look() == RUNNING
    third.update(status=KILLED)
    assert followed.look() == KILLED
    fourth = make(tmp_path, 4, RUNNING)
    assert followed.look() == RUNNING
    fourth.update(status=FINISHED)
    assert followed.look() == FINISHED
    assert followed.directory is not None
    assert followed.directory.path == fourth.path


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
    for file in checkpoints.glob("model.ckpt-10.data*"):
        file.unlink()
    with pytest.raises(Exception, match=r"model\.ckpt-10"):
        evaluated_checkpoint(built, str(checkpoints / "model.ckpt-10"))
