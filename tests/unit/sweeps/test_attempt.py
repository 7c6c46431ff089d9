from __future__ import annotations

from pathlib import Path

import pytest

from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus
from runner.system.locks import this_process


@pytest.fixture
def file(tmp_path: Path) -> AttemptFile:
    made = AttemptFile(tmp_path / "0003.json")
    made.write(Attempt(3, 1, ("seed=2",), {"seed": "2", "a": "1"}, objective=float("nan")))
    return made


def test_an_attempt_is_read_as_it_was_written(file: AttemptFile) -> None:
    attempt = file.read()
    assert (attempt.trial, attempt.overrides, attempt.status) == (
        3,
        ("seed=2",),
        TrialStatus.WAITING,
    )
    assert list(attempt.values.items()) == [("seed", "2"), ("a", "1")]
    assert attempt.objective is not None
    assert attempt.objective != attempt.objective


def test_changes_leave_the_rest(file: AttemptFile) -> None:
    assert file.update(status=TrialStatus.FINISHED, objective=0.5).trial == 3
    assert file.read().objective == 0.5


def test_the_run_is_found_where_it_was_moved_with_the_sweep(tmp_path: Path) -> None:
    run = tmp_path / "old" / "tiny" / "001"
    run.mkdir(parents=True)
    trials = tmp_path / "old" / "trials"
    trials.mkdir()
    AttemptFile(trials / "0000.json").write(Attempt(0, 1, (), {}, run_dir=str(run)))
    (tmp_path / "old").rename(tmp_path / "new")
    found = AttemptFile(tmp_path / "new" / "trials" / "0000.json").read()
    assert found.run_dir == str(tmp_path / "new" / "tiny" / "001")


def test_what_runs_with_a_free_lock_was_killed(file: AttemptFile) -> None:
    file.update(status=TrialStatus.RUNNING)
    settled = file.settle()
    assert (settled.status, settled.message) == (TrialStatus.KILLED, "its process was killed")
    assert file.read() == settled


def test_what_still_waits_will_not_start(file: AttemptFile) -> None:
    assert file.settle().status is TrialStatus.SKIPPED


def test_what_has_ended_stays(file: AttemptFile) -> None:
    file.update(status=TrialStatus.PRUNED, message="m", objective=1.0)
    assert file.settle().message == "m"


def test_a_process_has_a_name() -> None:
    assert this_process() == this_process()
    assert this_process().rpartition(":")[2].isdecimal()


def test_what_ended_a_launcher_is_told_with_what_it_killed(file: AttemptFile) -> None:
    file.update(status=TrialStatus.RUNNING)
    assert file.settle("OSError: no memory").message == "its process was killed: OSError: no memory"


def test_what_was_killed_is_over_when_its_sweep_has_seen_it(file: AttemptFile) -> None:
    file.update(status=TrialStatus.KILLED, message="m")
    settled = file.settle()
    assert (settled.over, settled.message) == (True, "m")


def test_it_can_be_called_off(file: AttemptFile) -> None:
    assert not file.called_off()
    file.await_orders()
    assert not file.called_off()
    file.call_off()
    file.await_orders()
    assert file.called_off()


def test_a_process_elsewhere_is_seen_by_its_lock(file: AttemptFile) -> None:
    assert not file.is_run_elsewhere()
    with AttemptFile(file.path).lock:
        assert file.is_run_elsewhere()
        file.update(process=this_process())
        assert not file.is_run_elsewhere()
    file.update(process="elsewhere:1")
    assert not file.is_run_elsewhere()
