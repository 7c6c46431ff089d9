"""Calls TensorFlow's classes and ours with the same arguments, and compares what can be seen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from tests.support.session_events import Events

# Takes `tf.train` or `runner`, notes what happens, and may use the folder.
Case: TypeAlias = Callable[[Any, Events, Path], Any]
_EVENTS = re.compile(r"events\.out\.tfevents\..*")


@dataclass(frozen=True)
class Outcome:
    """What a case leaves behind.

    Attributes:
      events: what it noted, in order.
      result: what it returned.
      error: the class of its error; None without one.
      files: the files that it wrote: of an event file its tags and steps, of `checkpoint` its text.
      graph: whether it finalized the graph.
    """

    events: list[str]
    result: Any
    error: type[BaseException] | None
    files: dict[str, Any]
    graph: bool


def outcome(api: Any, case: Case, folder: Path) -> Outcome:
    """Returns the outcome of a case with `tf.train` or `runner`."""
    events, result, error = Events(), None, None
    folder.mkdir()
    try:
        with tf.Graph().as_default() as graph:
            try:
                result = plain(case(api, events, folder))
            except Exception as raised:  # noqa: BLE001 (whatever it is, both must raise it)
                error = type(raised)
        tf.summary.FileWriterCache.clear()  # Closes files of events.
        return Outcome(events, result, error, written_files(folder), graph.finalized)
    finally:
        shutil.rmtree(folder)


def initialized_to(weight: Any, value: Any) -> Any:
    """Returns an operation that initialises all variables, and then sets one."""
    with tf.control_dependencies([tf.global_variables_initializer()]):
        return weight.assign(value).op


def assert_parity(case: Case, folder: Path) -> Outcome:
    """Asserts that both have one outcome, and returns TensorFlow's.

    An error of ours may be a subclass of TensorFlow's, with more to say.
    """
    theirs, ours = (
        outcome(api, case, folder / name)  # TensorFlow's writers remember a folder by its name.
        for name, api in (("theirs", tf.train), ("ours", runner))
    )
    assert ours.events == theirs.events
    assert ours.result == theirs.result
    assert ours.files == theirs.files
    assert ours.graph == theirs.graph
    assert (ours.error is None) is (theirs.error is None), (ours.error, theirs.error)
    if theirs.error is not None:
        assert issubclass(ours.error or object, theirs.error)
    return theirs


def plain(value: Any) -> Any:
    """Returns a result as a value that can be compared."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (tf.Tensor, tf.Operation)):
        return value.name
    return value


def written_files(folder: Path) -> dict[str, Any]:
    """Returns the files of a folder, as in `Outcome`."""
    files: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if _EVENTS.fullmatch(path.name):
            summaries = [
                (value.tag, event.step)
                for event in tf.train.summary_iterator(str(path))
                for value in event.summary.value
            ]
            files.setdefault(f"{path.parent.relative_to(folder)}/events", []).extend(summaries)
        else:
            is_state = path.name == "checkpoint"
            files[name] = path.read_text().replace(str(folder), "") if is_state else None
    return files


class Counting:
    """A graph that counts its steps, with a summary and something to feed."""

    def __init__(self) -> None:
        self.step = tf.train.get_or_create_global_step()
        self.feed = tf.placeholder_with_default(1.0, [], name="feed")
        self.weight = tf.get_variable("weight", initializer=2.0)
        self.product = tf.multiply(self.weight, self.feed, name="product")
        self.train_op = tf.assign_add(self.step, 1)
        tf.summary.scalar("weight", self.weight)

    def run(self, session: Any, steps: int = 3) -> list[Any]:
        """Takes steps in a session, closes it, and returns the values of the steps."""
        with session:
            return [session.run([self.train_op, self.product]) for _ in range(steps)]
