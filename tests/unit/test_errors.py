"""Errors report state, cause, remedy and choices, and carry the exit code."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest

from runner import errors
from runner.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunInUseError,
    RunnerError,
    SweepError,
    UserCodeError,
    nearest,
    ranked,
    require_all,
    similar,
)


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        (Problem("it is broken"), ["it is broken"]),
        (Problem("it is broken", remedy="fix it"), ["it is broken", "  remedy: fix it"]),
        (
            Problem("state", "cause", "remedy", ("a", "b")),
            ["state", "  cause: cause", "  remedy: remedy", "  choices: a, b"],
        ),
    ],
)
def test_a_problem_shows_what_it_has_in_order(problem: Problem, lines: list[str]) -> None:
    assert str(problem).splitlines() == lines


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
        ("NotInStoreError", 2),
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
    assert str(error) == f"ended by {number.name}"
    error = InterruptedRunError(number, resumable=True)
    assert str(error) == f"ended by {number.name}\n  remedy: the same command continues the run"


def test_one_check_does_not_hide_what_another_finds() -> None:
    def fail(state: str) -> None:
        raise ConfigError(Problem(state))

    require_all()
    require_all(lambda: None)
    with pytest.raises(ConfigError, match=r"first\nsecond\Z"):
        require_all(lambda: fail("first"), lambda: None, lambda: fail("second"))
    with pytest.raises(ZeroDivisionError):
        require_all(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (similar("tinny", ["warm", "tin", "tiny"]), ("tiny", "tin")),
        (similar("xyz", ["warm", "tiny"]), ()),
        (nearest("tinny", ["warm", "tiny", "other"]), ("tiny",)),
        (nearest("xyz", ["d", "b", "a", "c"]), ("a", "b", "c")),
        (nearest("xyz", ["b", "a", "a"], count=1), ("a",)),
        (ranked("tinny", ["warm", "tiny", "other", "warm"]), ("tiny", "warm", "other")),
        (ranked("xyz", ["b", "a"]), ("b", "a")),
    ],
)
def test_names_are_ordered_by_likeness(found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert found == expected


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


def test_within_names_a_key_in_every_problem_and_keeps_the_kind_of_error() -> None:
    both = CheckpointError(Problem("first"), Problem("second", "why"))
    with pytest.raises(CheckpointError) as raised, RunnerError.within("a.b"):
        raise both
    assert raised.value.problems == (Problem("a.b: first"), Problem("a.b: second", "why"))
    assert both.problems == (Problem("first"), Problem("second", "why"))
    user = UserCodeError(Problem("it raised"), "the frames")
    with pytest.raises(UserCodeError) as raised_again, UserCodeError.within("model"):
        raise user
    assert (str(raised_again.value), raised_again.value.details) == (
        "model: it raised",
        "the frames",
    )
    collected: list[Problem] = []
    with CheckpointError.within("c", collected):
        _fail()
    assert collected == [Problem("c: third")]
    with pytest.raises(ConfigError, match=r"^fourth$"), CheckpointError.within("c", collected):
        raise ConfigError.of("fourth")


def _fail() -> None:
    raise CheckpointError.of("third")
