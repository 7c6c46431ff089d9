from __future__ import annotations

from pathlib import Path

import pytest

from runner.system.folders import moved, way_to


def test_a_path_is_found_again_where_all_was_moved_or_copied(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run = str(old / "runs" / "001")
    way = way_to(run, old / "sweeps")
    assert way == "../runs/001"
    assert moved(run, way, new / "sweeps") == run
    (new / "runs" / "001").mkdir(parents=True)
    assert moved(run, way, new / "sweeps") == str(new / "runs" / "001")


def test_what_was_kept_without_a_way_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert way_to(None, tmp_path) is None
    assert moved("/a", None, tmp_path) == "/a"
    assert moved(None, None, tmp_path) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert moved("run", way_to("run", tmp_path / "sweep"), Path("sweep")) == str(tmp_path / "run")
