"""Schedules, and what is recorded on them: metrics, times, profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.hooks import (
    CheckpointHook,
    MetricsHook,
    ProfileOnDemandHook,
    RewindHook,
    StepTimingHook,
    StopAtStepHook,
)
from runner.hooks.scheduled import ScheduledHook
from tests.samples.counter import Counter
from tests.samples.hooks import AtStep
from tests.support.clock import Clock


class _Note(ScheduledHook):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[int] = []

    def act(self, session: tf.Session, step: int) -> None:
        self.steps.append(step)


class _Record(list[tuple[Mapping[str, float], int]]):
    def __call__(self, values: Mapping[str, float], step: int) -> None:
        self.append((values, step))


SCHEDULES: list[tuple[Any, bool, list[int]]] = [
    (3, False, [3, 6]),
    ("3 steps", True, [3, 6, 7]),
    ("3 steps, end", False, [3, 6, 7]),
    ("7 steps", True, [7]),
    ("at 2", False, [2]),
    ("at 2, at 5", True, [2, 5, 7]),
    ("20 seconds", False, [2, 4, 6]),
]


def test_they_act_on_their_schedules(counter: Counter) -> None:
    notes = [
        _Note(counter.step, every, at_end=at_end, clock=Clock(tick=10.0))
        for every, at_end, _ in SCHEDULES
    ]
    counter.run([StopAtStepHook(7), *notes])
    assert [note.steps for note in notes] == [steps for _, _, steps in SCHEDULES]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (5, r"step is 5; it must be a tensor, such as \$\{graph:step\}"),
        ("${graph:step} + 1", "it must be a tensor"),
        (tf.zeros([3]), r"step has the shape \(3,\); it must be a scalar"),
    ],
)
def test_a_step_that_is_not_a_scalar_tensor(step: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledHook(step, 1)


def test_values_are_computed_and_recorded_at_their_steps_only(counter: Counter) -> None:
    computed = tf.get_variable("computed", initializer=0, collections=["local_variables"])
    with tf.control_dependencies([tf.assign_add(computed, 1)]):
        value = tf.identity(counter.value)
    recorded, timed, final = _Record(), _Record(), tf.train.FinalOpsHook(computed)
    hooks = [
        MetricsHook({"value": value}, counter.step, 3, recorded),
        MetricsHook({"v": counter.value}, counter.step, "20 seconds", timed, Clock(tick=10.0)),
    ]
    counter.run([StopAtStepHook(7), *hooks, final])
    assert recorded == [({"value": 30.0}, 3), ({"value": 60.0}, 6)]
    assert type(recorded[0][0]["value"]) is float
    assert final.final_ops_values == 2
    assert [step for _, step in timed] == [2, 4, 6]
    with pytest.raises(ValueError, match=r"kernel has the shape \(3, 4\); it must be a scalar"):
        MetricsHook({"kernel": tf.zeros([3, 4])}, counter.step, 1, recorded)


def test_the_first_steps_are_of_one_kind(counter: Counter) -> None:
    fetched, recorded = list[int](), _Record()

    class Fetches(MetricsHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            fetched.extend([self._step] if run_values.results[1] else [])

    hook = Fetches({"v": counter.value}, counter.step, 3, recorded, one_kind_until=4)
    counter.run([StopAtStepHook(7), hook])
    assert fetched == [1, 2, 3, 4, 6]
    assert [step for _, step in recorded] == [3, 6]


def test_a_resumed_session_keeps_the_rhythm_and_rewinds(counter: Counter, tmp_path: Path) -> None:
    rewound: list[int] = []
    reached: list[int] = []
    hook, recorded = _Note(counter.step, 3), _Record()
    metrics = MetricsHook({"v": counter.value}, counter.step, 3, recorded)
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    for last in (4, 9):
        rewind = RewindHook(rewound.append, counter.step, reached.append)
        hooks = [StopAtStepHook(last), hook, metrics, save, rewind]
        counter.run(hooks, own=tmp_path)
    assert hook.steps == [step for _, step in recorded] == [3, 6, 9]
    assert rewound == [0, 4]
    assert reached == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]


def test_the_parts_of_a_step_add_up_to_the_whole(counter: Counter) -> None:
    """Each look at the clock takes a second: one in a run of the session, one between two runs."""
    recorded = _Record()
    waited = tf.cast(counter.step, tf.float64) * 0.1
    hook = StepTimingHook(waited, counter.step, recorded, every=2, clock=Clock(tick=1.0))
    counter.run([StopAtStepHook(5), hook])
    assert [step for _, step in recorded] == [2, 4]
    for (values, _), wait in zip(recorded, [0.15, 0.35], strict=True):
        assert values["time/step"] == 2.0
        assert values["time/input"] == pytest.approx(wait)
        assert values["time/compute"] == pytest.approx(1.0 - wait)
        assert values["time/outside"] == 1.0


class _Ask(AtStep):
    def act(self) -> None:
        (self.marker.parent / "profile").touch()


def _profiles(directory: Path) -> list[Path]:
    return sorted(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_a_file_asks_for_a_profile_and_is_removed(counter: Counter, tmp_path: Path) -> None:
    hook = ProfileOnDemandHook(tmp_path, counter.step, steps=2, every=1)
    counter.run([hook, StopAtStepHook(3)])
    assert list(tmp_path.iterdir()) == []
    counter.run([_Ask(3, str(tmp_path / "asked")), hook, StopAtStepHook(8)])
    (profile,) = _profiles(tmp_path)
    assert profile.stat().st_size > 0
    assert not (tmp_path / "profile").exists()


def test_a_profile_ends_with_the_training(counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "profile").touch()
    counter.run([ProfileOnDemandHook(tmp_path, counter.step, 99, every=1), StopAtStepHook(3)])
    assert len(_profiles(tmp_path)) == 1
    with pytest.raises(ValueError, match="0 steps to profile"):
        ProfileOnDemandHook(tmp_path, counter.step, 0)
