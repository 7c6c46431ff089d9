from __future__ import annotations

from pathlib import Path

import pytest

from runner.hooks import StopAtStepHook, WallClockLimitHook
from tests.tiny.clock import Clock
from tests.tiny.counter import Counter
from tests.tiny.hooks import AbortOnce


def test_it_stops_after_the_step_in_which_the_limit_passes(counter: Counter) -> None:
    assert counter.run([WallClockLimitHook("1 minute", Clock(tick=20.0))]) == 3


def test_within_the_limit_training_goes_on(counter: Counter) -> None:
    assert counter.run([WallClockLimitHook("1 hour", Clock(tick=20.0)), StopAtStepHook(9)]) == 9


def test_a_recovered_session_does_not_begin_a_new_limit(counter: Counter, tmp_path: Path) -> None:
    hooks = [WallClockLimitHook(100, Clock(tick=20.0)), AbortOnce(2, str(tmp_path / "marker"))]
    # Two steps are lost and taken again: five looks in all, four runs that came to an end.
    assert counter.run(hooks) == 4


def test_a_limit_that_is_not_a_duration() -> None:
    with pytest.raises(ValueError, match="'long' is not a duration"):
        WallClockLimitHook("long")
