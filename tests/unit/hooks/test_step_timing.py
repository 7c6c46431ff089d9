from __future__ import annotations

from collections.abc import Mapping

import pytest
import tensorflow.compat.v1 as tf

from runner.hooks import StepTimingHook, StopAtStepHook
from tests.tiny.clock import Clock
from tests.tiny.counter import Counter


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
