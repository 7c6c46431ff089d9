from __future__ import annotations

from pathlib import Path

import pytest

from runner.sweeps.attempt import Attempt, TrialStatus, end_of
from runner.sweeps.sweep_directory import SweepDirectory


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TrialStatus.FINISHED, TrialStatus.FINISHED),
        (TrialStatus.RUNNING, TrialStatus.KILLED),
        (TrialStatus.WAITING, TrialStatus.SKIPPED),
        (TrialStatus.KILLED, TrialStatus.KILLED),
    ],
)
def test_what_no_process_is_at_has_ended(
    tmp_path: Path, status: TrialStatus, expected: TrialStatus
) -> None:
    directory = SweepDirectory(tmp_path)
    directory.add([Attempt(3, 1, (), {}, status=status)])
    said: list[str] = []
    assert end_of(directory.attempt(0), said.append).status is expected
    assert directory.attempt(0).read().status is expected
    assert said == []


def test_a_process_that_lives_on_is_waited_for(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    directory.add([Attempt(3, 1, (), {}, status=TrialStatus.RUNNING)])
    worker = directory.attempt(0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        worker.update(status=TrialStatus.FINISHED)
        worker.lock.release()

    worker.lock.acquire()
    assert end_of(directory.attempt(0), say).status is TrialStatus.FINISHED
    assert said == ["trial 3 is still under way since before; waiting for that"]
