from __future__ import annotations

from pathlib import Path

import pytest

from runner.hooks import MemoryHook, StopAtStepHook
from runner.hooks.measurements import peak_bytes
from tests.tiny.counter import Counter

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
