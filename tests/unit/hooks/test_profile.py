from __future__ import annotations

from pathlib import Path

import pytest

from runner.hooks import ProfileOnDemandHook, StopAtStepHook
from tests.tiny.counter import Counter
from tests.tiny.hooks import AtStep


class _Ask(AtStep):
    def act(self) -> None:
        (self.marker.parent / "profile").touch()


def _profiles(directory: Path) -> list[Path]:
    return sorted(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_a_file_asks_for_a_profile_and_is_removed(counter: Counter, tmp_path: Path) -> None:
    hook = ProfileOnDemandHook(tmp_path, counter.step, steps=2, every=1)
    counter.run([_Ask(3, str(tmp_path / "asked")), hook, StopAtStepHook(8)])
    (profile,) = _profiles(tmp_path)
    assert profile.stat().st_size > 0
    assert not (tmp_path / "profile").exists()


def test_without_the_file_nothing_is_profiled(counter: Counter, tmp_path: Path) -> None:
    counter.run([ProfileOnDemandHook(tmp_path, counter.step, every=1), StopAtStepHook(3)])
    assert list(tmp_path.iterdir()) == []


def test_a_profile_ends_with_the_training(counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "profile").touch()
    counter.run([ProfileOnDemandHook(tmp_path, counter.step, 99, every=1), StopAtStepHook(3)])
    assert len(_profiles(tmp_path)) == 1
    with pytest.raises(ValueError, match="0 steps to profile"):
        ProfileOnDemandHook(tmp_path, counter.step, 0)
