from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from runner.system.locks import is_held


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    with FileLock(path):
        assert is_held(path)
    assert not is_held(path)
