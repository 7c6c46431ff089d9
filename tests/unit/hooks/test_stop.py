"""Hooks that end training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.hooks import (
    CheckpointHook,
    EarlyStoppingHook,
    StopAtStepHook,
    StopWhenHook,
    WallClockLimitHook,
)
from runner.hooks.scheduled import ScheduledHook
from runner.hooks.stop import exhausted
from tests.samples.counter import Counter
from tests.samples.hooks import AbortOnce
from tests.support.clock import Clock


def test_it_stops_at_the_step_in_a_resumed_session_too(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    assert counter.run([StopAtStepHook(4), save]) == 4
    assert counter.run([StopAtStepHook(4)], own=tmp_path) == 0
    assert counter.run([StopAtStepHook(7)], own=tmp_path) == 3


def test_it_stops_after_the_step_in_which_it_is_asked(counter: Counter) -> None:
    answers = iter([False, False, True])
    assert counter.run([StopWhenHook(lambda: next(answers))]) == 3


def test_a_session_that_is_lost_after_the_last_step_is_saved_takes_no_further(
    counter: Counter, tmp_path: Path
) -> None:
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=2)
    lost = AbortOnce(4, str(tmp_path / "lost"))
    # The step in which the session is lost is run again by TensorFlow, and not counted.
    assert counter.run([StopAtStepHook(4), save, lost], own=tmp_path / "saved") == 3
    newest = tf.train.latest_checkpoint(str(tmp_path / "saved"))
    assert newest is not None
    assert newest.endswith("-4")


def test_it_stops_after_the_step_in_which_the_limit_passes(counter: Counter) -> None:
    assert counter.run([WallClockLimitHook("1 minute", Clock(tick=20.0))]) == 3
    assert counter.run([WallClockLimitHook("1 hour", Clock(tick=20.0)), StopAtStepHook(9)]) == 9
    with pytest.raises(ValueError, match="'long' is not a duration"):
        WallClockLimitHook("long")


def test_a_recovered_session_does_not_begin_a_new_limit(counter: Counter, tmp_path: Path) -> None:
    hooks = [WallClockLimitHook(100, Clock(tick=20.0)), AbortOnce(2, str(tmp_path / "marker"))]
    # Two steps are lost and taken again: five looks in all, four runs that came to an end.
    assert counter.run(hooks) == 4


NAN = math.nan


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "goal", "expected"),
    [
        ([], 1, 0.0, "minimize", False),
        ([3.0], 1, 0.0, "minimize", False),
        ([3.0, 3.0], 1, 0.0, "minimize", True),
        ([3.0, 2.0, 2.5], 2, 0.0, "minimize", False),
        ([3.0, 2.0, 2.5, 2.1], 2, 0.0, "minimize", True),
        ([3.0, 2.0, 2.5, 1.9], 2, 0.0, "minimize", False),
        ([3.0, 2.0, 1.95, 1.9], 2, 0.2, "minimize", True),
        ([3.0, 2.9, 2.7], 2, 0.2, "minimize", False),
        ([0.1, 0.2, 0.3], 1, 0.0, "maximize", False),
        ([0.1, 0.2, 0.1], 1, 0.0, "maximize", True),
        ([NAN, NAN], 2, 0.0, "minimize", True),
        ([NAN, 5.0], 1, 1.0, "minimize", False),
    ],
)
def test_patience_counts_what_did_not_improve(
    values: Sequence[float], patience: int, min_delta: float, goal: str, expected: bool
) -> None:
    # What counts is whether it has run out now; a hook would have stopped when it first did.
    assert exhausted(values, patience, min_delta, Goal[goal]) is expected


class _Evaluation(ScheduledHook):
    """Gives one value a step, like an EvaluationHook that evaluates every step."""

    metrics = ("accuracy",)
    latest: tuple[int, dict[str, float]] | None = None

    def __init__(self, counter: Counter, values: Sequence[float], made_up: int = 0) -> None:
        """Gives one at once, too, where a session starts from the step `made_up`."""
        super().__init__(counter.step, 1)
        self._values, self._made_up = values, made_up
        self.objective, self.goal = "accuracy", Goal.maximize

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self.latest = None
        if self._step and self._step == self._made_up:
            self.act(session, self._step)

    def act(self, session: tf.Session, step: int) -> None:
        self.latest = (step, {"accuracy": self._values[step - 1]})


VALUES = [0.1, 0.5, 0.4, 0.4, 0.9, 0.9]


def _early(evaluation: Any, **arguments: Any) -> EarlyStoppingHook:
    return EarlyStoppingHook(evaluation, **{"patience": 2, **arguments})


def test_it_stops_when_patience_runs_out(counter: Counter, tmp_path: Path) -> None:
    evaluation = _Evaluation(counter, VALUES)
    # A history that cannot be written stops nothing.
    early = _early(evaluation, directory=tmp_path / "gone")
    assert counter.run([evaluation, early, StopAtStepHook(6)]) == 4
    assert counter.run([evaluation, _early(evaluation, patience=3), StopAtStepHook(6)]) == 6


def test_a_resumed_run_counts_on_from_its_checkpoint(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=3)
    evaluation = _Evaluation(counter, VALUES)
    counter.run([save, evaluation, _early(evaluation, directory=tmp_path)], limit=3)
    for _ in range(2):
        # At step 3 one evaluation had not improved; the next is the second. The second time there
        # is a history beyond the checkpoint: its steps are taken again, and it is forgotten.
        hook = _early(evaluation, directory=tmp_path)
        assert counter.run([evaluation, hook, StopAtStepHook(6)], own=tmp_path / "saved") == 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_run_that_was_killed_when_it_should_have_stopped_takes_no_step(
    counter: Counter, tmp_path: Path, cut: bool
) -> None:
    evaluation = _Evaluation(counter, VALUES)
    hook = _early(evaluation, directory=tmp_path)
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=4)
    if cut:  # A signal cuts the evaluation of step 4, and with it the hook's knowledge of it.
        counter.run([evaluation, hook, StopAtStepHook(3)])
        counter.run([save, StopAtStepHook(4)])
    else:
        counter.run([evaluation, hook, save])
    evaluation = _Evaluation(counter, VALUES, made_up=4 if cut else 0)
    again = [evaluation, _early(evaluation, directory=tmp_path)]
    assert counter.run(again, own=tmp_path / "saved") == 0


def test_without_an_evaluation_it_waits(counter: Counter) -> None:
    class _None:
        metrics, latest = ("accuracy",), None
        objective, goal = "accuracy", Goal.maximize

    assert counter.run([_early(_None(), patience=1), StopAtStepHook(3)]) == 3


@pytest.mark.parametrize(
    ("arguments", "stops_at"),
    [
        ({}, 4),
        ({"goal": "minimize"}, 3),
        ({"objective": "validation/accuracy"}, 4),
        ({"objective": "accuracy", "goal": "minimize"}, 3),
    ],
)
def test_it_follows_the_objective_unless_told_otherwise(
    counter: Counter, arguments: dict[str, Any], stops_at: int
) -> None:
    evaluation = _Evaluation(counter, VALUES)
    assert counter.run([evaluation, _early(evaluation, **arguments), StopAtStepHook(6)]) == stops_at


def test_a_metric_that_is_not_evaluated(counter: Counter) -> None:
    hook = _early(_Evaluation(counter, VALUES), objective="acuracy")
    with pytest.raises(ConfigError, match="needs the metric 'acuracy'") as caught:
        counter.run([hook])
    assert caught.value.problems[0].choices == ("accuracy",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "patience is 0"),
        ({"min_delta": -1.0}, "min_delta -1"),
        ({"goal": "max"}, "no goal 'max'; choices: maximize, minimize"),
        ({}, "evaluation is None; it is for example"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _early(None, **arguments)
