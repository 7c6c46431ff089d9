"""Errors tell state, cause, remedy and choices, and carry the exit code."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest

from runner import errors
from runner.errors import (
    ConfigError,
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunInUseError,
    RunnerError,
    SweepError,
    nearest,
    ranked,
    require_all,
    similar,
)


def test_a_problem_shows_only_what_it_has() -> None:
    assert str(Problem("it is broken")) == "it is broken"
    assert str(Problem("it is broken", remedy="mend it")) == "it is broken\n  remedy: mend it"


def test_a_problem_shows_all_it_has_in_order() -> None:
    assert str(Problem("state", "cause", "remedy", ("a", "b"))).splitlines() == [
        "state",
        "  cause: cause",
        "  remedy: remedy",
        "  choices: a, b",
    ]


def test_an_error_reports_every_problem() -> None:
    error = RunnerError(Problem("first", "why"), Problem("second"))
    assert [each.state for each in error.problems] == ["first", "second"]
    assert str(error) == "first\n  cause: why\nsecond"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("RunnerError", 1),
        ("ConfigError", 2),
        ("CheckpointError", 2),
        ("PlanError", 3),
        ("RunDirectoryError", 2),
        ("TrackingError", 1),
        ("TrackingUriError", 2),
        ("NonFiniteLossError", 1),
    ],
)
def test_exit_codes(name: str, code: int) -> None:
    kind: type[RunnerError] = getattr(errors, name)
    error = kind(Problem("x"))
    assert isinstance(error, RunnerError)
    assert error.exit_code == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_exit_code_that_shells_give(number: signal.Signals, code: int) -> None:
    error = InterruptedRunError(number)
    assert error.exit_code == code
    assert str(error) == f"ended by {number.name}\n  remedy: the same command continues the run"


def test_similar_names_are_the_likest_first() -> None:
    assert similar("tinny", ["warm", "tin", "tiny"]) == ("tiny", "tin")
    assert similar("xyz", ["warm", "tiny"]) == ()


def test_one_check_does_not_hide_what_another_finds() -> None:
    def fail(state: str) -> None:
        raise ConfigError(Problem(state))

    require_all()
    require_all(lambda: None)
    with pytest.raises(ConfigError, match=r"first\nsecond\Z"):
        require_all(lambda: fail("first"), lambda: None, lambda: fail("second"))
    with pytest.raises(ZeroDivisionError):
        require_all(lambda: 1 / 0)


def test_nearest_falls_back_to_the_first_names() -> None:
    assert nearest("tinny", ["warm", "tiny", "other"]) == ("tiny",)
    assert nearest("xyz", ["d", "b", "a", "c"]) == ("a", "b", "c")
    assert nearest("xyz", ["b", "a", "a"], count=1) == ("a",)


def test_ranked_keeps_every_name_once() -> None:
    assert ranked("tinny", ["warm", "tiny", "other", "warm"]) == ("tiny", "warm", "other")
    assert ranked("xyz", ["b", "a"]) == ("b", "a")


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(Problem("a"), Problem("b")),
        InterruptedRunError(signal.SIGTERM),
        PrunedRunError(Problem("pruned")),
        RunInUseError(Problem("in use"), Path("runs/tiny/001")),
        SweepError(Problem("failed"), 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_another_process_whole(error: RunnerError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.exit_code, vars(copy)) == (str(error), error.exit_code, vars(error))
