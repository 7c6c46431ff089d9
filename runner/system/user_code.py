"""Errors of an experiment's own code, shown with only its own frames of the traceback.

Frames in installed packages, Python's library and the runner are left out. If no others remain, as
for an experiment that is itself installed, only frames of the libraries between the runner and that
experiment are left out. `RUNNER_FULL_ERROR=1` shows every frame.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import Problem, RunnerError, UserCodeError

FULL = "RUNNER_FULL_ERROR"

_BETWEEN = {"python", "runner", "tensorflow", "keras", "hydra", "omegaconf"}
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")
_FOLDERS = {
    str(Path(__file__).resolve().parents[1]): "runner",
    os.path.realpath(sysconfig.get_path("stdlib")): "python",
}
_GENERATED = ("<", "__autograph_generated_file")

# Headings of Keras and TensorFlow, which are less informative than the next line.
_HEADINGS = ("Exception encountered when calling ", "Graph execution error:")
_COLOURS = re.compile(r"\x1b\[\d*m")
_NODES = re.compile(r"(\s*\[\[.*\]\])+\s*$")
# The step of a `tf.data` pipeline, which comes before the message of its function.
_IN_PIPELINE = re.compile(
    r"^Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
# Where an operation was created, which TensorFlow writes before and after its message.
_MADE = re.compile(r"^(Graph execution error:\s+)?Detected at node .*?\nNode: '[^']*'\n", re.DOTALL)
_MADE_AGAIN = "\n\nOriginal stack trace for "
# How TensorFlow writes the error of Python code that an operation has called.
_IN_PYTHON = re.compile(
    r"^(?P<error>\S.*)\nTraceback \(most recent call last\):\n(?P<frames>(?:[ \t]*\n|  .*\n)+)",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


@contextmanager
def calling(place: str, given: str = "") -> Iterator[None]:
    """Reports any error of the block as one of the experiment's own code.

    Args:
      place: what of the configuration is called, e.g. `metrics.accuracy`.
      given: its arguments, in words.

    Raises:
      UserCodeError: in place of any error but a `RunnerError`.
    """
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        raise raised(place, error, given) from error


def raised(place: str, error: BaseException, given: str = "") -> UserCodeError:
    """Returns the error that reports `error`; the arguments are those of `calling`."""
    what = f"{type(error).__name__}: {_first_line(_message(error))}".rstrip(": ")
    return _reported(f"{place} raised {what}", given, _shown(error))


def raised_by_operation(
    place: str,
    error: BaseException,
    made: Iterable[traceback.FrameSummary] = (),
    given: str = "",
) -> UserCodeError:
    """Returns the error that reports an operation's, which may be that of Python code it called.

    Args:
      place: what of the configuration made the operation.
      error: what the session has raised.
      made: the frames in which the operation was made.
      given: the arguments of what is called there, in words.
    """
    told = _IN_PIPELINE.sub("", _MADE.sub("", str(error)).partition(_MADE_AGAIN)[0])
    python = _IN_PYTHON.search(told)
    if python is None:
        # These read their lines from the files.
        made = [traceback.FrameSummary(each.filename, each.lineno, each.name) for each in made]
        what = f"{type(error).__name__}: {_first_line(told)}"
        told = _plain(_NODES.sub("", told)).removeprefix(_HEADINGS[1]).strip("\n")
        message = f"{type(error).__name__}: {told}"
    else:
        what = message = python["error"]
        found = _FRAME.findall(python["frames"])
        made = [traceback.FrameSummary(file, int(line), name) for file, line, name in found]
    return _reported(f"{place} raised {what}", given, _frames(made) + message)


def located(error: BaseException) -> str:
    """Returns an error in one line, with the last place of it that is in the experiment's code."""
    stack = _stack(error)
    place = (_own(stack) or stack)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


def _reported(state: str, given: str, details: str) -> UserCodeError:
    return UserCodeError(Problem(f"{state}\n  {given}" if given else state), details)


def _message(error: BaseException) -> str:
    """Returns an error's message; Python shows that of a KeyError as code, Keras's lines in one."""
    if isinstance(error, KeyError) and len(error.args) == 1 and "\n" in str(error.args[0]):
        return str(error.args[0])
    return str(error)


def _first_line(message: str) -> str:
    lines = [line.strip() for line in _plain(message).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_HEADINGS)]
    return (telling or lines or [""])[0]


def _plain(text: str) -> str:
    return _COLOURS.sub("", text).strip("\n")


def _shown(error: BaseException) -> str:
    """Returns an error, and what it came from, as Python prints them."""
    if os.environ.get(FULL) == "1":
        return _plain("".join(traceback.format_exception(error)))
    whole = traceback.TracebackException.from_exception(error)
    last = "".join(whole.format_exception_only()).replace(str(error), _message(error), 1)
    text = _frames(whole.stack) + last
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # Errors that a library has handled are of no interest, unless they are named as the cause.
    if before is not None and (before is error.__cause__ or _own(_stack(before))):
        text = f"{_shown(before)}\n\nThe error above led to this one:\n\n{text}"
    return _plain(text)


def _stack(error: BaseException) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def _frames(stack: Iterable[traceback.FrameSummary]) -> str:
    stack = list(stack)
    own = stack if os.environ.get(FULL) == "1" else _own(stack)
    left = len(stack) - len(own)
    frames = "1 frame" if left == 1 else f"{left} frames"
    note = f"  ({frames} of libraries left out; {FULL}=1 shows all)\n" if left else ""
    return note + "".join(traceback.StackSummary.from_list(own).format())


def _own(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    homes = [(_home(frame.filename), frame) for frame in stack]
    own = [frame for home, frame in homes if not home]
    return own or [frame for home, frame in homes if home not in _BETWEEN]


def _home(file: str) -> str:
    """Returns the installed package of a file, `python` or `runner`; empty for any other file."""
    if Path(file).name.startswith(_GENERATED):
        return "python"
    if installed := _INSTALLED.match(file):
        return installed[1]
    path = os.path.realpath(file)
    return next((home for folder, home in _FOLDERS.items() if path.startswith(f"{folder}/")), "")
