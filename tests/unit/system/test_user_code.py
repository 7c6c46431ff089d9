"""Which frames of a traceback are shown, and what of the errors that led to one."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ConfigError, Problem, UserCodeError
from runner.system.user_code import FULL, calling, raised, raised_by_operation


def fail() -> None:
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        raise LookupError("the index is damaged") from error


def fail_late() -> None:
    try:
        fail()
    except LookupError:
        raise ValueError("\x1b[1mno data\x1b[0m\nat all") from None


def reported(function: object, given: str = "") -> UserCodeError:
    with pytest.raises(UserCodeError) as caught, calling("data", given):
        function()  # type: ignore[operator]
    return caught.value


def test_frames_of_libraries_are_left_out_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    error = reported(fail, "f was called")
    assert str(error) == "data raised LookupError: the index is damaged\n  f was called"
    assert error.details.count("Error: ") == 2, "the cause that the code names is shown too"
    assert "left out; RUNNER_FULL_ERROR=1 shows all" in error.details
    assert "decoder.py" not in error.details
    assert error.details.endswith("\nLookupError: the index is damaged")
    assert 'raise LookupError("the index is damaged") from error' in error.details
    monkeypatch.setenv(FULL, "1")
    whole = reported(fail).details
    assert "decoder.py" in whole
    assert "left out" not in whole
    assert whole.endswith("\nLookupError: the index is damaged")


def test_what_the_code_has_hidden_stays_hidden() -> None:
    error = reported(fail_late)
    assert str(error) == "data raised ValueError: no data"
    assert error.details.endswith("\nValueError: no data\nat all")
    assert "LookupError: " not in error.details


def test_code_that_is_itself_installed_is_shown(tmp_path: Path) -> None:
    keras: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    for package, names in (("keras", keras), ("mine", mine)):
        file = tmp_path / "site-packages" / package / "code.py"
        file.parent.mkdir(parents=True)
        file.write_text("def call(then):\n    then()\n")
        exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(TypeError) as caught:
        keras["call"](partial(mine["call"], None))
    assert caught.tb is not None
    details = raised("model", caught.value.with_traceback(caught.tb.tb_next)).details
    assert "mine/code.py" in details
    assert "keras/code.py" not in details


def roots(message: str) -> str:
    """Returns what TensorFlow writes where the batch of an error was for two devices."""
    node = "\n\t [[{{node A}}]]"
    return (
        f"2 root error(s) found.\n  (0) INVALID_ARGUMENT: {message}{node}\n\t [[A/_57]]\n"
        f"  (1) INVALID_ARGUMENT: {message}{node}\n0 successful operations.\n"
        "0 derived errors ignored."
    )


def test_what_tensorflow_writes_around_an_error_is_left_out() -> None:
    at = '  File "/mine/data.py", line 3, in augment'
    python = f"ZeroDivisionError: 1 / 0\nTraceback (most recent call last):\n\n{at}\n    1 / 0\n\n"
    pipeline = (
        "Error in user-defined function passed to MapDataset:1 transformation with iterator: "
        "Iterator::Root::Prefetch::Map: "
    )
    made = f"Detected at node 'A' defined at (most recent call last):\n  {at}\nNode: 'A'\n"
    for message, shown in {
        pipeline + python: "data raised ZeroDivisionError: 1 / 0",
        f"{made}no row\n\t [[{{{{node A}}}}]]\n\nOriginal stack trace for 'A':\n{at}": (
            "data raised ValueError: no row"
        ),
        f"{made}{made}{roots('no row')}": "data raised ValueError: no row",
        roots(pipeline + python): "data raised ZeroDivisionError: 1 / 0",
    }.items():
        error = raised_by_operation("data", ValueError(message))
        assert str(error) == shown
        assert error.details.endswith(shown.removeprefix("data raised "))


def test_problems_stay_problems_and_errors_cross_processes() -> None:
    with pytest.raises(ConfigError), calling("data"):
        raise ConfigError(Problem("no data"))
    error = reported(fail)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details, again.exit_code) == (str(error), error.details, 1)
