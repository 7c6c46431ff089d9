from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.config import Goal
from runner.errors import ConfigError
from runner.hooks import CheckpointHook, EarlyStoppingHook, StopAtStepHook
from runner.hooks.early_stopping import exhausted
from tests.tiny.counter import Counter

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


class _Evaluation:
    """Gives one value a step, like an EvaluationHook that evaluates every step."""

    metrics = ("accuracy",)

    def __init__(self, counter: Counter, values: Sequence[float]) -> None:
        self._values, self._step = values, 0

    @property
    def latest(self) -> tuple[int, dict[str, float]] | None:
        self._step += 1
        return self._step, {"accuracy": self._values[self._step - 1]}

    def at(self, step: int) -> Any:
        self._step = step
        return self


VALUES = [0.1, 0.5, 0.4, 0.4, 0.9, 0.9]


def _hook(evaluation: Any, **arguments: Any) -> EarlyStoppingHook:
    return EarlyStoppingHook(
        evaluation, **{"metric": "accuracy", "patience": 2, "mode": "maximize", **arguments}
    )


def test_it_stops_when_its_patience_is_at_its_end(counter: Counter) -> None:
    assert counter.run([_hook(_Evaluation(counter, VALUES)), StopAtStepHook(6)]) == 4


def test_with_more_patience_it_goes_on(counter: Counter) -> None:
    hook = _hook(_Evaluation(counter, VALUES), patience=3)
    assert counter.run([hook, StopAtStepHook(6)]) == 6


def test_a_resumed_run_counts_on_from_its_checkpoint(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=3)
    evaluation = _Evaluation(counter, VALUES)
    counter.run([save, _hook(evaluation, directory=tmp_path)], limit=3)
    # At step 3 one evaluation had not improved; the next is the second.
    hook = _hook(evaluation.at(3), directory=tmp_path)
    assert counter.run([hook, StopAtStepHook(6)], own=tmp_path / "saved") == 1
    # A history beyond the checkpoint is of steps that are taken again, and is forgotten.
    hook = _hook(evaluation.at(3), directory=tmp_path)
    assert counter.run([hook, StopAtStepHook(6)], own=tmp_path / "saved") == 1


def test_without_an_evaluation_it_waits(counter: Counter) -> None:
    class _None:
        metrics, latest = ("accuracy",), None

    assert counter.run([_hook(_None(), patience=1), StopAtStepHook(3)]) == 3


def test_a_metric_that_is_not_evaluated(counter: Counter) -> None:
    hook = _hook(_Evaluation(counter, VALUES), metric="acuracy")
    with pytest.raises(ConfigError, match="looks for the metric 'acuracy'") as caught:
        counter.run([hook])
    assert caught.value.problems[0].choices == ("accuracy",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patience": 0}, "patience is 0"),
        ({"min_delta": -1.0}, "min_delta -1"),
        ({"mode": "max"}, "no mode 'max'; choices: maximize, minimize"),
        ({}, "evaluation is None; it is for example"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _hook(None, **arguments)
