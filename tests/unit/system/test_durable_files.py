from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.system.atomic_files import write_text


@pytest.mark.parametrize("lasting", [True, False])
def test_only_what_is_to_last_waits_for_the_disk(
    lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    write_text(tmp_path / "plan.txt", "a plan", lasting=lasting)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [
        ("plan.txt", "a plan")
    ]
    assert bool(waited) == lasting
