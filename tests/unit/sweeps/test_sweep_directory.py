"""The files of a sweep: its record, and its attempts with their locks and orders."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.choices import Resume
from runner.errors import RunDirectoryError, RunInUseError
from runner.sweeps.sweep_directory import (
    Attempt,
    AttemptFile,
    SweepDirectory,
    open_sweep,
    sweep_fingerprint,
    temporary_sweep,
)
from runner.system.locks import this_process
from runner.system.status import Status


@pytest.fixture
def file(tmp_path: Path) -> AttemptFile:
    made = AttemptFile(tmp_path / "0003.json")
    made.write(
        Attempt(3, overrides=("seed=2",), values={"seed": "2", "a": "1"}, objective=float("nan"))
    )
    return made


def test_an_attempt_is_read_as_it_was_written_and_updated(file: AttemptFile) -> None:
    attempt = file.read()
    assert (attempt.trial, attempt.overrides, attempt.status) == (3, ("seed=2",), Status.WAITING)
    assert list(attempt.values.items()) == [("seed", "2"), ("a", "1")]
    assert attempt.objective is not None
    assert attempt.objective != attempt.objective
    assert file.update(status=Status.FINISHED, curve=((1, 0.5),)).trial == 3
    assert file.read().curve == ((1, 0.5),)


def test_the_run_is_found_where_it_was_moved_with_the_sweep(tmp_path: Path) -> None:
    run = tmp_path / "old" / "tiny" / "001"
    run.mkdir(parents=True)
    SweepDirectory(tmp_path / "old").add([Attempt(0, run_dir=str(run))])
    (tmp_path / "old").rename(tmp_path / "new")
    attempt = SweepDirectory(tmp_path / "new").attempt(0).read()
    assert attempt.run_dir == str(tmp_path / "new" / "tiny" / "001")


SETTLED = {
    Status.RUNNING: (Status.KILLED, "its process was killed: no memory", True),
    Status.WAITING: (Status.SKIPPED, "it was not started", False),
    Status.KILLED: (Status.KILLED, "m", True),
    Status.PRUNED: (Status.PRUNED, "m", False),
    Status.FINISHED: (Status.FINISHED, "m", False),
    Status.FAILED: (Status.FAILED, "m", False),
}


@pytest.mark.parametrize("status", SETTLED)
def test_what_has_no_process_is_finalized(file: AttemptFile, status: Status) -> None:
    file.update(status=status, message="m")
    attempt = file.finalize("no memory", lambda line: pytest.fail(line))
    assert (attempt.status, attempt.message, attempt.over) == SETTLED[status]
    assert file.read().status is attempt.status


def test_an_attempt_is_cancelled_and_seen_by_its_lock_from_elsewhere(file: AttemptFile) -> None:
    for cancelled in (False, True):
        assert file.cancelled() is cancelled
        file.cancel()
    assert not file.runs_elsewhere()
    with AttemptFile(file.path).lock:
        assert file.runs_elsewhere()
        file.update(process=this_process())
        assert not file.runs_elsewhere()
    file.update(process="elsewhere:1")
    assert not file.runs_elsewhere()


def test_attempts_are_numbered_on_and_their_owners_alone(directory: SweepDirectory) -> None:
    attempts = [Attempt(0), Attempt(1)]
    assert directory.add(attempts) == range(2)
    assert directory.add(attempts[:1]) == range(2, 3)
    assert [file.path.stem for file in directory.attempts()] == ["0000", "0001", "0002"]
    assert directory.attempt(1).read() == attempts[1]
    assert (directory.path / "trials").stat().st_mode & 0o777 == 0o700


OVERRIDES = ["+experiment=tiny", "seed=1,2"]
FINGERPRINT = sweep_fingerprint(OVERRIDES)


def _open(folder: Path, resume: Resume = Resume.auto) -> SweepDirectory:
    """Opens the sweep, as a process that then ends."""
    directory = open_sweep(folder, FINGERPRINT, resume)
    directory.lock.release()
    return directory


def test_the_same_command_finds_its_sweep_again(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no sweep of this command"):
        _open(tmp_path, Resume.must)
    assert _open(tmp_path).path == tmp_path / "001"
    other = open_sweep(tmp_path, "another", Resume.auto)
    assert other.path == tmp_path / "002"
    assert _open(tmp_path).path == _open(tmp_path, Resume.must).path == tmp_path / "001"
    assert _open(tmp_path, Resume.never).path == _open(tmp_path).path == tmp_path / "003"


def test_what_a_sweep_is_does_not_depend_on_the_order_of_overrides_nor_on_the_version() -> None:
    assert sweep_fingerprint(OVERRIDES[::-1]) == "0fee7134c8e8ce26"
    assert sweep_fingerprint(OVERRIDES, "study") != "0fee7134c8e8ce26"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"hydra\.sweep\.dir is .*/file/sweeps\n") as raised:
        _open(tmp_path / "file" / "sweeps")
    assert "it cannot be created: Not a directory" in str(raised.value)


def test_one_process_works_at_a_grid_and_several_at_a_search(tmp_path: Path) -> None:
    directory = open_sweep(tmp_path, FINGERPRINT, Resume.auto)
    with pytest.raises(RunInUseError, match="001 is in use"):
        open_sweep(tmp_path, FINGERPRINT, Resume.auto)
    directory.stop_on_failure(True)
    directory.failed()
    joined = open_sweep(tmp_path, FINGERPRINT, Resume.auto, join=True)
    # Those that have stopped are not started again by one that joins them.
    joined.stop_on_failure(False)
    assert (joined.joined, joined.lock.is_locked, joined.stopped()) == (True, False, True)
    directory.lock.release()
    again = open_sweep(tmp_path, FINGERPRINT, Resume.auto, join=True)
    again.stop_on_failure(True)
    assert not again.stopped()
    again.lock.release()


@pytest.mark.parametrize("stops", [True, False])
def test_a_failure_stops_the_sweep_on_request(directory: SweepDirectory, stops: bool) -> None:
    for _ in range(2):  # Also by the next command.
        directory.stop_on_failure(stops)
        assert not directory.stopped()
        directory.failed()
        assert directory.stopped() == stops


def test_a_sweep_that_is_not_recorded_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for shared in (True, False):
        with temporary_sweep(shared=shared) as directory:
            assert (directory.path.parent == tmp_path) == shared
            directory.add([Attempt(0)])
        assert list(tmp_path.iterdir()) == []
