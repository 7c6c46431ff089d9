"""Errors of an experiment's own code, shown with only its own frames of the traceback.

Frames in installed packages, Python's library and the runner are left out. If no others remain, as
for an experiment that is itself installed, only frames of the libraries between the runner and that
experiment are left out. `RUNNER_FULL_ERROR=1` shows every frame.
"""

from __future__ import annotations

import os
import random
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.errors import Problem, RunnerError, UserCodeError

FULL = "RUNNER_FULL_ERROR"

ERRORS = (Exception, SystemExit)
"""The errors of user code: its `sys.exit` is one like any other, not the end of the run."""

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
    r"(?:\{\{function_node [^}]*\}\} )?"
    r"Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
# Where an operation was created, which TensorFlow writes before and after its message.
_CREATED = re.compile(
    r"^(Graph execution error:\s+)?(?:Detected at node .*?\nNode: '[^']*'\n)+", re.DOTALL
)
_CREATED_AGAIN = "\n\nOriginal stack trace for "
# Several operations failed, as those that wait for the failed one on another device do; the first.
_ROOTS = re.compile(
    r"^\d+ root error\(s\) found\.\n  \(0\) [A-Z_ ]+: (.*?)(?:\n  \(1\) [A-Z_ ]+: .*)?"
    r"\n\d+ successful operations\.\n\d+ derived errors ignored\.",
    re.DOTALL | re.MULTILINE,
)
# How TensorFlow writes the error of Python code that an operation has called.
_IN_PYTHON = re.compile(
    r"^(?P<error>\S.*(?:\n  (?:cause|remedy): .*)*)\n"
    r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t]*\n|  .*\n)+)",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


@contextmanager
def staying() -> Iterator[None]:
    """Goes back to the working directory after the block, if user code in it went elsewhere.

    The paths of a run are relative to the directory that its command was started in.
    """
    folder = os.getcwd()
    try:
        yield
    finally:
        if os.getcwd() != folder:
            os.chdir(folder)


@contextmanager
def unchanged_random_states() -> Iterator[None]:
    """Restores the random states of Python and NumPy after the block."""
    import numpy as np  # Most commands need not wait for it.

    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


@contextmanager
def calling(place: str, arguments: str = "") -> Iterator[None]:
    """Reports any error of the block as one of the experiment's own code.

    Args:
      place: the key of the configuration that names the code, e.g. `metrics.accuracy`.
      arguments: a description of the arguments of the call.

    Raises:
      UserCodeError: in place of any error but a `RunnerError`.
    """
    try:
        with staying():
            yield
    except RunnerError:
        raise
    except ERRORS as error:
        raise raised(place, error, arguments) from error


def raised(place: str, error: BaseException, arguments: str = "") -> UserCodeError:
    """Returns the error that reports `error`, with the arguments of `calling`."""
    if not arguments and _IN_PYTHON.search(str(error)):
        return raised_by_operation(place, error)
    summary = f"{type(error).__name__}: {_first_line(_message(error))}".rstrip(": ")
    state = f"{place} raised {summary}"
    state = f"{state}\n  {arguments}" if arguments else state
    return UserCodeError(Problem(state), _shown(error), place)


def raised_by_operation(
    place: str, error: BaseException, created: Iterable[traceback.FrameSummary] = ()
) -> UserCodeError:
    """Returns the error that reports the error of an operation, or of Python code that it called.

    Args:
      place: the key of the configuration whose code created the operation.
      error: what the session raised.
      created: the frames in which the operation was created.
    """
    text = _CREATED.sub("", str(error)).partition(_CREATED_AGAIN)[0]
    text = _IN_PIPELINE.sub("", _ROOTS.sub(r"\1", text))
    python = _IN_PYTHON.search(text)
    if python is None:
        places = [(frame.filename, frame.lineno, frame.name) for frame in created]
        summary = f"{type(error).__name__}: {_first_line(text)}"
        text = _plain(_NODES.sub("", text)).removeprefix(_HEADINGS[1]).strip("\n")
        message = f"{type(error).__name__}: {text}"
    else:
        summary = message = python["error"]
        frames = _FRAME.findall(python["frames"])
        places = [(file, int(line), name) for file, line, name in frames]
    # New summaries read their lines from the files.
    stack = [traceback.FrameSummary(*place) for place in places]
    return UserCodeError(Problem(f"{place} raised {summary}"), _frames(stack) + message, place)


def located(error: BaseException) -> str:
    """Returns an error in one line, with its last place in the experiment's code."""
    stack = traceback.extract_tb(error.__traceback__)
    place = (_user_frames(stack) or stack)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


def _message(error: BaseException) -> str:
    """Returns an error's message; Python would quote the several lines of a KeyError of Keras."""
    if isinstance(error, KeyError) and len(error.args) == 1 and "\n" in str(error.args[0]):
        return str(error.args[0])
    return _IN_PIPELINE.sub("", str(error))


def _first_line(message: str) -> str:
    lines = [line.strip() for line in _plain(message).splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(_HEADINGS)]
    return (informative or lines or [""])[0]


def _plain(text: str) -> str:
    return _COLOURS.sub("", text).strip("\n")


def _shown(error: BaseException) -> str:
    """Returns an error and its causes as Python prints them, with the frames of user code only."""
    if os.environ.get(FULL) == "1":
        return _plain("".join(traceback.format_exception(error)))
    whole = traceback.TracebackException.from_exception(error)
    last = "".join(whole.format_exception_only()).replace(str(error), _message(error), 1)
    text = _frames(whole.stack) + last
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # Errors that a library has handled are of no interest, unless they are named as the cause.
    from_user_code = before and _user_frames(traceback.extract_tb(before.__traceback__))
    if before is not None and (before is error.__cause__ or from_user_code):
        text = f"{_shown(before)}\n\nThe error above led to this one:\n\n{text}"
    return _plain(text)


def _frames(stack: Sequence[traceback.FrameSummary]) -> str:
    shown = stack if os.environ.get(FULL) == "1" else _user_frames(stack)
    omitted = len(stack) - len(shown)
    frames = "1 frame" if omitted == 1 else f"{omitted} frames"
    note = f"  ({frames} of libraries left out; {FULL}=1 shows all)\n" if omitted else ""
    return note + "".join(traceback.StackSummary.from_list(list(shown)).format())


def _user_frames(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    homes = [(_home(frame.filename), frame) for frame in stack]
    frames = [frame for home, frame in homes if not home]
    return frames or [frame for home, frame in homes if home not in _BETWEEN]


def _home(file: str) -> str:
    """Returns the installed package of a file, `python` or `runner`; empty for any other file."""
    if Path(file).name.startswith(_GENERATED):
        return "python"
    if installed := _INSTALLED.match(file):
        return installed[1]
    path = os.path.realpath(file)
    return next((home for folder, home in _FOLDERS.items() if path.startswith(f"{folder}/")), "")
