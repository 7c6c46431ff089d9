from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.tracking.tracking_directory import Position, RunIdentity, TrackingDirectory

IDENTITY = RunIdentity("u", "digits", "one", {"a": "1"}, None, ("sqlite:////a.db", "tensorboard:"))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    assert directory.identity() is None
    assert directory.position("http://a") == Position()
    directory.write_identity(IDENTITY)
    assert directory.identity() == IDENTITY
    directory.delivery_lock("http://a")
    position = Position("r", "1", 2, 3, "RUNNING", None, 1)
    directory.write_position("http://a", position)
    assert directory.position("http://a") == position
    assert directory.position("http://b") == Position()


def test_the_parent_is_found_where_both_have_been_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    sweep = old / "sweeps" / "001"
    sweep.mkdir(parents=True)
    TrackingDirectory(old / "tiny" / "001").write_identity(replace(IDENTITY, parent=str(sweep)))
    old.rename(new)
    identity = TrackingDirectory(new / "tiny" / "001").identity()
    assert identity == replace(IDENTITY, parent=str(new / "sweeps" / "001"))


def test_only_its_owner_may_read_what_holds_passwords(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    directory.write_identity(replace(IDENTITY, stores=("http://me:s3cret@host",)))
    assert directory.path.stat().st_mode & 0o077 == 0


def test_the_writer_shows(tmp_path: Path) -> None:
    directory, other = TrackingDirectory(tmp_path), TrackingDirectory(tmp_path)
    assert not directory.is_written()
    other.claim()
    assert directory.is_written()
    other.release()
    assert not directory.is_written()
