"""The time of steps, memory and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.hooks import MemoryHook, ProfileOnDemandHook, StepTimingHook, StopAtStepHook
from runner.hooks.measurements import peak_bytes
from tests.tiny.clock import Clock
from tests.tiny.counter import Counter
from tests.tiny.hooks import AtStep


def test_the_parts_of_a_step_add_up_to_the_whole(counter: Counter) -> None:
    """Each look at the clock takes a second: one in a run of the session, one between two runs."""
    recorded: list[tuple[Mapping[str, float], int]] = []
    waited = tf.cast(counter.step, tf.float64) * 0.1
    hook = StepTimingHook(
        waited, counter.step, lambda *args: recorded.append(args), every=2, clock=Clock(tick=1.0)
    )
    counter.run([StopAtStepHook(5), hook])
    assert [step for _, step in recorded] == [2, 4]
    for (values, _), wait in zip(recorded, [0.15, 0.35], strict=True):
        assert values["time/step"] == 2.0
        assert values["time/input"] == pytest.approx(wait)
        assert values["time/compute"] == pytest.approx(1.0 - wait)
        assert values["time/outside"] == 1.0


STATUS = Path("/proc/self/status")


def test_it_records_mebibytes_on_its_schedule(counter: Counter) -> None:
    recorded = []
    hook = MemoryHook(
        counter.step, lambda *args: recorded.append(args), every=2, peak=lambda: 3 * 2**20
    )
    counter.run([StopAtStepHook(5), hook])
    assert recorded == [({"memory/peak_mib": 3.0}, 2), ({"memory/peak_mib": 3.0}, 4)]


@pytest.mark.skipif(not STATUS.is_file(), reason="only Linux tells the peak a second way")
def test_the_peak_is_that_of_the_operating_system() -> None:
    (line,) = [each for each in STATUS.read_text().splitlines() if each.startswith("VmHWM")]
    assert peak_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=0.05)


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
