from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import RunDirectoryError, RunInUseError
from runner.sweeps.attempt import Attempt
from runner.sweeps.sweep_directory import (
    SweepDirectory,
    SweepIdentity,
    open_sweep,
    unrecorded_sweep,
)

IDENTITY = SweepIdentity(("+experiment=tiny", "seed=1,2"))


def _open(folder: Path, resume: str = "auto", join: bool = False) -> SweepDirectory:
    """Opens the sweep, as a process that then ends."""
    directory = open_sweep(folder, IDENTITY, resume, join=join)
    directory.lock.release()
    return directory


def test_the_same_command_finds_its_sweep_again(tmp_path: Path) -> None:
    assert _open(tmp_path).path == tmp_path / "001"
    other = open_sweep(tmp_path, SweepIdentity(("+experiment=tiny", "seed=1,3")), "auto")
    assert other.path == tmp_path / "002"
    assert _open(tmp_path).path == tmp_path / "001"
    assert _open(tmp_path, "must").path == tmp_path / "001"


def test_never_begins_another(tmp_path: Path) -> None:
    assert _open(tmp_path).path != _open(tmp_path, "never").path
    assert _open(tmp_path).path == tmp_path / "002"


def test_must_needs_one(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no sweep of this command"):
        _open(tmp_path, "must")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"hydra\.sweep\.dir is .*/file/sweeps\n") as raised:
        _open(tmp_path / "file" / "sweeps")
    assert "it cannot be made: Not a directory" in str(raised.value)
    assert "give hydra.sweep.dir=... a folder that can be written" in str(raised.value)


def test_one_process_works_at_a_grid_and_several_at_a_search(tmp_path: Path) -> None:
    directory = open_sweep(tmp_path, IDENTITY, "auto")
    with pytest.raises(RunInUseError, match="001 is in use"):
        open_sweep(tmp_path, IDENTITY, "auto")
    assert not open_sweep(tmp_path, IDENTITY, "auto", join=True).lock.is_locked
    directory.lock.release()


def test_what_a_sweep_is_does_not_depend_on_the_order_of_overrides() -> None:
    assert IDENTITY.fingerprint == SweepIdentity(IDENTITY.overrides[::-1]).fingerprint
    assert IDENTITY.fingerprint != SweepIdentity(IDENTITY.overrides, "study").fingerprint


def test_attempts_are_numbered_on(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    attempts = [Attempt(0, 1, (), {}), Attempt(1, 1, (), {})]
    assert directory.add(attempts) == range(2)
    assert directory.add(attempts[:1]) == range(2, 3)
    assert [file.path.name for file in directory.attempts()] == [
        "0000.json",
        "0001.json",
        "0002.json",
    ]
    assert directory.attempt(1).read() == attempts[1]


@pytest.mark.parametrize("stops", [True, False])
def test_a_failure_stops_the_sweep_where_that_is_asked_for(tmp_path: Path, stops: bool) -> None:
    directory = SweepDirectory(tmp_path)
    assert not directory.stopped()
    directory.stop_on_failure(stops)
    assert not directory.stopped()
    directory.failed()
    assert directory.stopped() == stops
    directory.stop_on_failure(stops)
    assert not directory.stopped()


def test_secrets_are_left_out_or_the_owners(tmp_path: Path) -> None:
    directory = open_sweep(
        tmp_path,
        IDENTITY,
        "auto",
        masked=lambda texts: [each.replace("1,2", "*") for each in texts],
    )
    directory.lock.release()
    record = directory.read()
    assert record is not None
    assert record["overrides"] == ["+experiment=tiny", "seed=*"]
    assert _open(tmp_path).path == directory.path
    directory.add([Attempt(0, 1, (), {})])
    assert (directory.path / "trials").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("stops", [True, False])
def test_a_failure_that_is_not_the_last_holds_trials_where_it_may_stop_them(
    tmp_path: Path, stops: bool
) -> None:
    directory = SweepDirectory(tmp_path)
    directory.stop_on_failure(stops)
    directory.failed(last=False)
    assert (directory.held(), directory.stopped()) == (stops, False)
    directory.go_on()
    assert not directory.held()
    directory.failed(last=False)
    directory.stop_on_failure(stops)  # As the next command does.
    assert not directory.held()


def test_who_joins_does_not_undo_that_the_others_have_stopped(tmp_path: Path) -> None:
    directory = open_sweep(tmp_path, IDENTITY, "auto")
    directory.stop_on_failure(True)
    directory.failed()
    other = open_sweep(tmp_path, IDENTITY, "auto", join=True)
    other.stop_on_failure(False)
    assert other.joined
    assert other.stopped()
    directory.lock.release()
    again = open_sweep(tmp_path, IDENTITY, "auto", join=True)
    again.stop_on_failure(True)
    assert not again.stopped()
    again.lock.release()


def test_a_sweep_that_is_not_recorded_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for shared in (True, False):
        with unrecorded_sweep(shared=shared) as directory:
            assert (directory.path.parent == tmp_path) == shared
            directory.add([Attempt(0, 1, (), {})])
        assert list(tmp_path.iterdir()) == []
