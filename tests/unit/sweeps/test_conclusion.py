from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner.config.choices import Goal
from runner.config.schema import SweepConfig
from runner.console import Screen
from runner.errors import SweepError
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus
from runner.sweeps.conclusion import Conclusion
from runner.sweeps.summary import Objective
from runner.tracking.tracker import LoggingTracker


def _trial(number: int, status: TrialStatus, **changes: Any) -> Attempt:
    return Attempt(number, 1, (), {"seed": str(number)}, status=status, **changes)


GOOD = _trial(
    0, TrialStatus.FINISHED, objective=0.5, run_dir="runs/tiny/001", curve=((10, 0.9), (20, 0.5))
)
MISTAKEN = _trial(1, TrialStatus.FAILED, message="no data", exit_code=2)
KILLED = _trial(2, TrialStatus.KILLED, message="its process was killed", exit_code=1)
SKIPPED = _trial(3, TrialStatus.SKIPPED)


def _conclusion(trials: Sequence[Attempt], screen: io.StringIO | None = None) -> Conclusion:
    return Conclusion(
        trials,
        [Objective("validation/loss", Goal.minimize)],
        SweepConfig(figures=False, threshold=0.6),
        lambda: [each for each in trials if each.status is TrialStatus.FINISHED],
        lambda: None,
        [each for each in trials if each.status in FAILURES],
        "the same command tries them again",
        Screen(Console(file=screen or io.StringIO())),
    )


def test_the_parent_run_has_tables_and_the_best_trial(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tags = _conclusion([GOOD, MISTAKEN]).record(LoggingTracker("sweep"), tmp_path)
    assert tags == {
        "runner.sweep.trials": "2",
        "runner.sweep.failed": "1",
        "runner.sweep.best": json.dumps([{"seed": "0"}]),
        "runner.sweep.best_run": json.dumps(["runs/tiny/001"]),
    }
    files = dict(message.split(":\n", 1) for message in caplog.messages)
    assert list(files) == ["summary.txt", "trials.json", "steps_to_threshold.txt"]
    assert [each["status"] for each in json.loads(files["trials.json"])] == ["FINISHED", "FAILED"]
    assert "1 of 1" in files["steps_to_threshold.txt"]


@pytest.mark.parametrize(
    ("trials", "words", "code"),
    [
        ([GOOD, MISTAKEN], "1 of 2 trials failed\n", 2),
        ([GOOD, MISTAKEN, KILLED], "2 of 3 trials failed\n", 1),
        ([KILLED, SKIPPED], "1 of 2 trials failed, 1 not started\n", 1),
    ],
)
def test_failures_are_an_error(trials: Sequence[Attempt], words: str, code: int) -> None:
    screen = io.StringIO()
    with pytest.raises(SweepError, match=words) as raised:
        _conclusion(trials, screen).tell()
    assert raised.value.exit_code == code
    failed = [each for each in trials if each.message]
    assert all(f"{each.status.value}: {each.message}" in screen.getvalue() for each in failed)


def test_skipped_and_pruned_trials_are_none() -> None:
    _conclusion([GOOD, _trial(1, TrialStatus.PRUNED), SKIPPED]).tell()
