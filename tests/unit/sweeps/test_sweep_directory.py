from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import RunDirectoryError, RunInUseError
from runner.sweeps.attempt import Attempt
from runner.sweeps.sweep_directory import SweepDirectory, SweepIdentity, open_sweep

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
