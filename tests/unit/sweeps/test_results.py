"""The report of a sweep at its end: tables, bands of learning curves, failures, masked secrets."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner.config.masking import Mask
from runner.config.schema import MaskConfig, SweepConfig
from runner.console import Screen
from runner.errors import SweepError
from runner.sweeps.bands import bands, short_names, short_value, threshold_rows
from runner.sweeps.results import Results, columns, failures, masked_trials, rows
from runner.sweeps.sweep_directory import FAILURES, Attempt
from runner.system.status import Status
from runner.tracking import Tracker
from tests.support.sweeping import ACCURACY, LOSS, finished

TRIALS = [
    finished(0, 0.5),
    finished(1, None, status=Status.FAILED, message="no\n  remedy: yes"),
    finished(2, 0.25),
    finished(3, float("nan")),
    finished(4, 0.75, status=Status.PRUNED),
]


def test_the_table_has_columns_the_best_first() -> None:
    assert columns(rows(TRIALS, [LOSS, ACCURACY])).splitlines() == [
        "trial  seed  validation/loss  validation/accuracy  status    run",
        "2      2     0.25             0.75                 FINISHED  tiny/002",
        "0      0     0.5              0.5                  FINISHED  tiny/000",
        "4      4     0.75             0.25                 PRUNED    tiny/004",
        "3      3     nan              nan                  FINISHED  tiny/003",
        "1      1                                           FAILED    tiny/001",
    ]
    assert failures(TRIALS) == ["trial 1 seed=1 FAILED: no", "  remedy: yes"]
    trial = Attempt(0, number=3, values={"a": "b"}, status=Status.KILLED)
    assert failures([trial]) == ["trial 0 a=b KILLED (3 attempts): no message"]


def test_a_narrow_terminal_folds_the_table_and_cuts_nothing() -> None:
    file = io.StringIO()
    trial = finished(1, 1.123456789, values={"optimizer.learning_rate": "0.1", "seed": "3"})
    results = replace(
        _results([trial]), screen=Screen(Console(file=file, width=50, force_terminal=True))
    )
    results.show()
    assert "seed 3, validation/loss 1.12346, FINISHED, tiny/001" in " ".join(
        file.getvalue().split()
    )
    assert "…" not in file.getvalue()


def test_a_row_of_the_table_is_short() -> None:
    values = {"optimizer.learning_rate": "0.008131602938471", "scaffold@scaffolds.cnn": "[a,b]"}
    trial = finished(1, 1.123456789, run_dir="runs/digits_cnn/001", values=values)
    table = rows([trial], [LOSS])
    assert table[1] == ["1", "0.0081316", "[a,b]", "1.12346", "FINISHED", "digits_cnn/001"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.008131602938471", "0.0081316"),
        ("1.23456789e-05", "1.23457e-05"),
        ("12345678", "12345678"),
        ("1.0", "1.0"),
        ("1.0000000.1", "1.0000000.1"),
        ("digits_cnn", "digits_cnn"),
        ("nan", "nan"),
    ],
)
def test_a_swept_number_is_shown_with_six_digits(value: str, shown: str) -> None:
    assert short_value(value) == shown


CNN = "scaffold@scaffolds.cnn"


def _curve(source: str, seed: int, *curve: float, **changes: Any) -> Attempt:
    steps = tuple((10 * (index + 1), value) for index, value in enumerate(curve))
    values = {CNN: source, "seed": str(seed)}
    return finished(0, None, **{"values": values, "curve": steps, **changes})


CURVES = [
    _curve("random", 0, 0.1, 0.2),
    _curve("digits", 0, 0.5, 0.75),
    _curve("random", 1, 0.3, 0.6),
    _curve("digits", 1, 0.25, 1.0, 1.0),
    _curve("digits", 2, 0.0, status=Status.PRUNED),
    _curve("digits", 3, status=Status.FINISHED),
]


def test_trials_that_differ_in_the_seed_are_a_band_and_the_best_comes_first() -> None:
    first, second = bands(CURVES, ACCURACY, ["seed"])
    assert (first.values, first.label) == ({CNN: "digits"}, "cnn=digits")
    # Only where all of them were evaluated, and only those that finished.
    assert first.steps == (10, 20)
    assert first.mean == (0.375, 0.875)
    assert (first.low, first.high) == ((0.25, 0.75), (0.5, 1.0))
    assert second.label == "cnn=random"
    assert [band.label for band in bands(CURVES, LOSS, ["seed"])] == ["cnn=random", "cnn=digits"]


def test_every_trial_is_a_band_without_repeated_keys_and_counts_once() -> None:
    curves = bands(CURVES, ACCURACY, [])
    labels = ["cnn=digits, seed=1", "cnn=digits, seed=0", "cnn=random, seed=1"]
    assert [band.label for band in curves] == [*labels, "cnn=random, seed=0"]
    assert all(band.low == band.mean == band.high for band in curves)
    # Of equal values, the last.
    curves = bands([*CURVES, _curve("random", 1, 0.4, 0.5)], ACCURACY, ["seed"])
    assert [len(band.curves) for band in curves] == [2, 2]
    assert curves[1].high == (0.4, 0.5)


def test_nan_and_curves_without_a_common_step_come_last() -> None:
    curves = bands([_curve("a", 0, 0.5, math.nan), _curve("b", 0, 0.1, 0.1)], ACCURACY, ["seed"])
    assert [band.label for band in curves] == ["cnn=b", "cnn=a"]
    assert math.isnan(curves[1].mean[1])
    apart = _curve("a", 1, curve=((15, 0.9),))
    curves = bands([_curve("a", 0, 0.5), apart, _curve("b", 0, 0.1)], ACCURACY, ["seed"])
    assert [band.steps for band in curves] == [(10,), ()]


def test_keys_are_short_where_that_is_unique_and_numbers_have_six_digits() -> None:
    keys = [CNN, "optimizer.learning_rate", "a.units", "b.units", "optimizer"]
    short = ["cnn", "learning_rate", "a.units", "b.units", "optimizer"]
    assert list(short_names(keys).values()) == short
    trial = replace(_curve("a", 0, 0.5), values={"optimizer.learning_rate": "0.008131602938471"})
    (band,) = bands([trial], ACCURACY, ["seed"])
    assert band.label == "learning_rate=0.0081316"
    assert threshold_rows([band], ACCURACY, 0.5)[1][0] == "0.0081316"


def test_a_trial_that_does_not_reach_the_threshold_counts_as_longer_than_it_was() -> None:
    more = [*CURVES, _curve("random", 2, 0.3, 0.9)]
    head = ["cnn", "reached", "fewest", "median", "most", "validation/accuracy at the end"]
    assert threshold_rows(bands(more, ACCURACY, ["seed"]), ACCURACY, 0.5) == [
        head,
        ["digits", "2 of 2", "10", "15", "20", "0.875 (0.75 to 1)"],
        ["random", "2 of 3", "20", "20", "> 20", "0.5667 (0.2 to 0.9)"],
    ]
    (_, row) = threshold_rows(bands(CURVES[:1], ACCURACY, ["seed"]), ACCURACY, 0.5)
    assert row == ["random", "0 of 1", "> 20", "> 20", "> 20", "0.2"]
    (_, row) = threshold_rows(bands(CURVES[:1], LOSS, ["seed"]), LOSS, 0.1)
    assert row[1:5] == ["1 of 1", "10", "10", "10"]


GOOD = finished(0, 0.5, curve=((10, 0.9), (20, 0.5)))
MISTAKEN = finished(1, None, status=Status.FAILED, message="no data", exit_code=2)
KILLED = finished(2, None, status=Status.KILLED, message="its process was killed")
SKIPPED = finished(3, None, status=Status.SKIPPED)
PRUNED = finished(4, 0.5, status=Status.PRUNED)


def _results(trials: Sequence[Attempt], screen: io.StringIO | None = None) -> Results:
    return Results(
        trials=trials,
        objectives=[LOSS],
        settings=SweepConfig(figures=False, threshold=0.6),
        best=[trial for trial in trials if trial.status is Status.FINISHED],
        study=None,
        failed=[trial for trial in trials if trial.status in FAILURES],
        rerun="the same command tries them again",
        screen=Screen(Console(file=screen or io.StringIO())),
    )


class _Texts(Tracker):
    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def log_text(self, text: str, file: str) -> None:
        self.files[file] = text


def test_the_parent_run_has_tables_and_the_bestfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # Not to a folder whose name needs quotes.
    tracker = _Texts()
    tags = _results([GOOD, MISTAKEN]).record(tracker, tmp_path)
    best, test, export = tags.pop("mlflow.note.content").splitlines()[1:-1]
    assert best == "best:    trial 0 seed=0: validation/loss 0.5, in runs/tiny/000"
    assert test.endswith(" mode=evaluate run_dir=/runs/tiny/000")
    assert export.endswith(" mode=export run_dir=/runs/tiny/000")
    assert tags == {
        "runner.sweep.trials": "2",
        "runner.sweep.failed": "1",
        "runner.sweep.best": json.dumps([{"seed": "0"}]),
        "runner.sweep.best_run": json.dumps(["runs/tiny/000"]),
    }
    files = tracker.files
    assert list(files) == ["summary.txt", "trials.json", "steps_to_threshold.txt"]
    assert [trial["status"] for trial in json.loads(files["trials.json"])] == ["FINISHED", "FAILED"]
    assert files["steps_to_threshold.txt"].startswith("steps to validation/loss 0.6\n")
    assert "1 of 1" in files["steps_to_threshold.txt"]


@pytest.mark.parametrize(
    ("trials", "state", "code"),
    [
        ([GOOD, MISTAKEN], "1 of 2 trials failed\n", 2),
        ([GOOD, MISTAKEN, KILLED], "2 of 3 trials failed\n", 1),
        ([KILLED, SKIPPED], "1 of 2 trials failed, 1 not started\n", 1),
        ([GOOD, PRUNED, SKIPPED], "", 0),
    ],
)
def test_failures_are_an_error_and_skipped_and_pruned_trials_are_not(
    trials: Sequence[Attempt], state: str, code: int
) -> None:
    screen = io.StringIO()
    results = _results(trials, screen)
    if code:
        with pytest.raises(SweepError, match=state) as raised:
            results.show()
        assert raised.value.exit_code == code
    else:
        results.show()
    failed = [trial for trial in trials if trial.message]
    assert all(f"{trial.status.value}: {trial.message}" in screen.getvalue() for trial in failed)


def test_several_secrets_of_a_key_stay_apart() -> None:
    trials = [
        Attempt(
            number,
            overrides=(f"data.token={token}", "+data.pin_token=a", f"seed={number}"),
            values={"data.token": token, "data.pin_token": "a", "seed": str(number)},
        )
        for number, token in enumerate(["one", "two", "one"])
    ]
    shown = masked_trials([trials[2], trials[1], trials[0]], Mask(MaskConfig(), {}))
    assert [dict(trial.values) for trial in shown] == [
        {"data.token": "***1", "data.pin_token": "***1", "seed": "2"},
        {"data.token": "***2", "data.pin_token": "***1", "seed": "1"},
        {"data.token": "***1", "data.pin_token": "***1", "seed": "0"},
    ]
    assert shown[1].overrides == ("data.token=***", "+data.pin_token=***", "seed=1")
