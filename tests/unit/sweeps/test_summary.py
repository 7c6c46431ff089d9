from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from runner.config.choices import Goal
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.summary import (
    Objective,
    failures,
    ranked_trials,
    rich_table,
    rows,
    short_value,
    text,
)

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)


def _trial(number: int, loss: float | None, **changes: Any) -> Attempt:
    given: dict[str, Any] = {
        "metrics": {} if loss is None else {"loss": loss, "accuracy": 1 - loss},
        "objective": loss,
        "status": TrialStatus.FINISHED,
        "run_dir": f"runs/tiny/{number:03d}",
    }
    return Attempt(number, 1, (), {"seed": str(number)}, **{**given, **changes})


TRIALS = [
    _trial(0, 0.5),
    _trial(1, None, status=TrialStatus.FAILED, message="no\n  remedy: yes"),
    _trial(2, 0.25),
    _trial(3, float("nan")),
    _trial(4, 0.75, status=TrialStatus.PRUNED),
]


@pytest.mark.parametrize("objective", [LOSS, ACCURACY])
def test_the_best_comes_first_and_failures_last(objective: Objective) -> None:
    assert [each.trial for each in ranked_trials(TRIALS, [objective])] == [2, 0, 4, 3, 1]


def test_what_violates_a_constraint_is_marked_and_comes_before_failures_alone() -> None:
    trials = [*TRIALS, _trial(5, 0.125, infeasible=True)]
    assert [each.trial for each in ranked_trials(trials, [LOSS])] == [2, 0, 4, 3, 5, 1]
    statuses = [row[-2] for row in rows(trials, [LOSS])]
    assert statuses[-2:] == ["FINISHED, infeasible", "FAILED"]


def test_a_larger_accuracy_is_better() -> None:
    trials = [_trial(0, 0.1, metrics={"accuracy": 0.1}), _trial(1, 0.1, metrics={"accuracy": 0.9})]
    assert ranked_trials(trials, [ACCURACY])[0].trial == 1


def test_the_text_has_columns_and_the_failures() -> None:
    assert text(TRIALS, [LOSS, ACCURACY]).splitlines() == [
        "trial  seed  validation/loss  validation/accuracy  status    run",
        "2      2     0.25             0.75                 FINISHED  tiny/002",
        "0      0     0.5              0.5                  FINISHED  tiny/000",
        "4      4     0.75             0.25                 PRUNED    tiny/004",
        "3      3     nan              nan                  FINISHED  tiny/003",
        "1      1                                           FAILED    tiny/001",
        "trial 1 seed=1 FAILED: no",
        "  remedy: yes",
    ]


def test_attempts_are_counted_where_there_are_several() -> None:
    trial = Attempt(0, 3, (), {"a": "b"}, status=TrialStatus.KILLED)
    assert failures([trial]) == ["trial 0 a=b KILLED (3 attempts): no message"]


def test_a_terminal_gets_a_table() -> None:
    file = io.StringIO()
    Console(file=file, width=120).print(rich_table(rows(TRIALS, [LOSS]), "the best first"))
    assert "the best first" in file.getvalue()
    assert file.getvalue().index("0.25") < file.getvalue().index("0.75")


def _joined(printed: str) -> list[list[str]]:
    """Returns the rows of a printed table, what is folded put together."""
    found: list[list[str]] = []
    for line in printed.splitlines():
        if line[:1] not in ("┃", "│"):
            continue
        cells = [each.strip() for each in re.split("[┃│]", line)[1:-1]]
        # A row begins with the number of its trial; of the head, all lines have the bolder rule.
        if not found or (cells[0] and line[0] == "│"):
            found.append(cells)
        else:
            found[-1] = [a + b for a, b in zip(found[-1], cells, strict=True)]
    return found


def test_a_narrow_terminal_folds_the_table_and_cuts_nothing() -> None:
    values = {
        "optimizer.learning_rate": "0.008131602938471",
        "scaffold@scaffolds.cnn": "[a,b]",
    }
    trials = [
        replace(
            _trial(number, 0.123456789 + number, run_dir=f"runs/digits_cnn/{number:03d}"),
            values=values,
        )
        for number in range(12)
    ]
    table = rows(trials, [LOSS])
    file = io.StringIO()
    Console(file=file, width=60).print(rich_table(table, "the best first"))
    assert max(map(len, file.getvalue().splitlines())) <= 60
    assert _joined(file.getvalue()) == table
    assert table[2] == ["1", "0.0081316", "[a,b]", "1.12346", "FINISHED", "digits_cnn/001"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.008131602938471", "0.0081316"),
        ("-1234567.5e-3", "-1234.57"),
        ("0.30000000000000004", "0.3"),
        ("1.23456789e-05", "1.23457e-05"),
        ("12345678", "12345678"),
        ("0.001", "0.001"),
        ("1.0", "1.0"),
        ("1.0000000.1", "1.0000000.1"),
        ("digits_cnn", "digits_cnn"),
        ("nan", "nan"),
        ("", ""),
    ],
)
def test_a_swept_number_is_shown_with_six_digits(value: str, shown: str) -> None:
    assert short_value(value) == shown
    (_, row) = rows([replace(_trial(0, 0.5), values={"key": value})], [LOSS])
    assert row[1] == shown
