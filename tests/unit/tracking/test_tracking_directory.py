from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory

OPENING = Opening("u", "digits", "one", {"a": "1"}, None, ("sqlite:////a.db", "tensorboard:"))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    assert directory.opening() is None
    assert directory.position("http://a") == Position()
    directory.write_opening(OPENING)
    assert directory.opening() == OPENING
    directory.delivery_lock("http://a")
    position = Position("r", "1", 2, 3, 4, [[1, 2, 3]], ["loss"], "RUNNING", None, 1)
    directory.write_position("http://a", position)
    assert directory.position("http://a") == position
    assert directory.position("http://b") == Position()


def test_files_of_before_times_were_kept_are_read(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    directory.store("http://a").mkdir(parents=True)
    (directory.path / "opening.json").write_text(
        '{"uid": "u", "experiment": "digits", "run_name": "one", "tags": {"a": "1"},'
        ' "parent": null, "stores": ["sqlite:////a.db", "tensorboard:"],'
        ' "system_metrics": false, "patience_seconds": 60.0, "ended": null}'
    )
    (directory.store("http://a") / "position.json").write_text(
        '{"run_id": "r", "experiment_id": "1", "segment": 2, "offset": 3, "sending": 4,'
        ' "cuts": [[1, 2, 3]], "differing": ["loss"], "status": "RUNNING", "ended": null,'
        ' "lost": 1}'
    )
    assert directory.opening() == OPENING
    assert OPENING.start_time is None
    position = Position("r", "1", 2, 3, 4, [[1, 2, 3]], ["loss"], "RUNNING", None, 1)
    assert directory.position("http://a") == position
    assert (position.end_time, position.last_time) == (None, None)


def test_the_parent_is_found_where_both_have_been_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    sweep = old / "sweeps" / "001"
    sweep.mkdir(parents=True)
    TrackingDirectory(old / "tiny" / "001").write_opening(replace(OPENING, parent=str(sweep)))
    old.rename(new)
    opening = TrackingDirectory(new / "tiny" / "001").opening()
    assert opening == replace(OPENING, parent=str(new / "sweeps" / "001"))


def test_only_its_owner_may_read_what_holds_passwords(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    directory.write_opening(replace(OPENING, stores=("http://me:s3cret@host",)))
    assert directory.path.stat().st_mode & 0o077 == 0


def test_the_writer_shows(tmp_path: Path) -> None:
    directory, other = TrackingDirectory(tmp_path), TrackingDirectory(tmp_path)
    assert not directory.is_written()
    other.claim()
    assert directory.is_written()
    other.release()
    assert not directory.is_written()
