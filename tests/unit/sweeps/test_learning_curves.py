from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.learning_curves import bands, check_bands, short_names, steps_to, threshold_rows
from runner.sweeps.summary import Objective

ACCURACY = Objective("validation/accuracy", Goal.maximize)
LOSS = Objective("validation/loss", Goal.minimize)
CNN = "scaffold@scaffolds.cnn"


def _trial(source: str, seed: int, *curve: float, **changes: Any) -> Attempt:
    given: dict[str, Any] = {
        "status": TrialStatus.FINISHED,
        "curve": tuple((10 * (index + 1), value) for index, value in enumerate(curve)),
    }
    return Attempt(0, 1, (), {CNN: source, "seed": str(seed)}, **{**given, **changes})


TRIALS = [
    _trial("random", 0, 0.1, 0.2),
    _trial("digits", 0, 0.5, 0.75),
    _trial("random", 1, 0.3, 0.6),
    _trial("digits", 1, 0.25, 1.0, 1.0),
    _trial("digits", 2, 0.0, status=TrialStatus.PRUNED),
    _trial("digits", 3, status=TrialStatus.FINISHED),
]


def test_trials_that_differ_in_the_seed_are_a_band_and_the_best_comes_first() -> None:
    first, second = bands(TRIALS, ACCURACY, ["seed"])
    assert (first.values, first.label) == ({CNN: "digits"}, "cnn=digits")
    # Only where all of them were evaluated, and only those that finished.
    assert first.steps == (10, 20)
    assert first.mean == (0.375, 0.875)
    assert (first.low, first.high) == ((0.25, 0.75), (0.5, 1.0))
    assert second.label == "cnn=random"
    assert [band.label for band in bands(TRIALS, LOSS, ["seed"])] == ["cnn=random", "cnn=digits"]


def test_without_repeated_keys_every_trial_is_a_band() -> None:
    found = bands(TRIALS, ACCURACY, [])
    assert [band.label for band in found] == [
        "cnn=digits, seed=1",
        "cnn=digits, seed=0",
        "cnn=random, seed=1",
        "cnn=random, seed=0",
    ]
    assert all(band.low == band.mean == band.high for band in found)


def test_trials_of_equal_values_count_once_by_the_last() -> None:
    found = bands([*TRIALS, _trial("random", 1, 0.4, 0.5)], ACCURACY, ["seed"])
    assert [(band.label, len(band.curves)) for band in found] == [
        ("cnn=digits", 2),
        ("cnn=random", 2),
    ]
    assert found[1].high == (0.4, 0.5)


def test_a_label_has_six_digits_of_a_number() -> None:
    trial = replace(_trial("a", 0, 0.5), values={"optimizer.learning_rate": "0.008131602938471"})
    (band,) = bands([trial], ACCURACY, ["seed"])
    assert band.label == "learning_rate=0.0081316"
    assert threshold_rows([band], ACCURACY, 0.5)[1][0] == "0.0081316"


def test_nan_is_shown_and_comes_last() -> None:
    found = bands([_trial("a", 0, 0.5, math.nan), _trial("b", 0, 0.1, 0.1)], ACCURACY, ["seed"])
    assert [band.label for band in found] == ["cnn=b", "cnn=a"]
    assert math.isnan(found[1].mean[1])


def test_curves_without_a_common_step_come_last_too() -> None:
    apart = _trial("a", 1, curve=((15, 0.9),))
    found = bands([_trial("a", 0, 0.5), apart, _trial("b", 0, 0.1)], ACCURACY, ["seed"])
    assert [band.steps for band in found] == [(10,), ()]


def test_keys_are_short_where_that_tells_them_apart() -> None:
    keys = [CNN, "optimizer.learning_rate", "a.units", "b.units", "optimizer"]
    assert list(short_names(keys).values()) == [
        "cnn",
        "learning_rate",
        "a.units",
        "b.units",
        "optimizer",
    ]


@pytest.mark.parametrize(
    ("goal", "threshold", "steps"),
    [
        (Goal.maximize, 0.5, 20),
        (Goal.maximize, 0.9, math.inf),
        (Goal.minimize, 0.3, 10),
        (Goal.minimize, 0.1, math.inf),
    ],
)
def test_the_first_evaluation_that_reaches_the_threshold(
    goal: Goal, threshold: float, steps: float
) -> None:
    assert steps_to({20: 0.5, 10: 0.25, 30: 0.75}, threshold, goal) == steps


def test_the_table_counts_trials_that_do_not_reach_it_as_longer_than_they_were() -> None:
    more = [*TRIALS, _trial("random", 2, 0.3, 0.9)]
    assert threshold_rows(bands(more, ACCURACY, ["seed"]), ACCURACY, 0.5) == [
        ["cnn", "reached", "fewest", "median", "most", "validation/accuracy at the end"],
        ["digits", "2 of 2", "10", "15", "20", "0.875 (0.75 to 1)"],
        ["random", "2 of 3", "20", "20", "> 20", "0.5667 (0.2 to 0.9)"],
    ]
    (_, row) = threshold_rows(bands(TRIALS[:1], ACCURACY, ["seed"]), ACCURACY, 0.5)
    assert row == ["random", "0 of 1", "> 20", "> 20", "> 20", "0.2"]
    (_, row) = threshold_rows(bands(more[2:3] + TRIALS[:1], ACCURACY, ["seed"]), ACCURACY, 0.5)
    assert row[1:5] == ["1 of 2", "20", "> 20", "> 20"]


def test_bands_are_over_swept_keys_and_the_default_suits_every_sweep() -> None:
    swept = {"optimizer", "fold", "train.steps"}
    with pytest.raises(ConfigError, match=r"sweep\.bands names 'sed'") as raised:
        check_bands(["fold", "seed", "sed", "stps"], swept)
    assert [each.state for each in raised.value.problems] == [
        "sweep.bands names 'sed'",
        "sweep.bands names 'stps'",
    ]
    assert "choices: fold, optimizer, train.steps" in str(raised.value)
    check_bands(["seed"], set())
    check_bands(["anything"], None)
