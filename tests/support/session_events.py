"""Plays: they note what a session does, in order, with TensorFlow's classes and with ours."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner


class Events(list[str]):
    """Notes what happens, hooks and scaffold included."""

    def hook(self, name: str = "hook", **kwargs: Any) -> Hook:
        return Hook(self, name, **kwargs)


class Hook(tf.train.SessionRunHook):
    def __init__(
        self,
        events: list[str],
        name: str,
        fetches: Any = None,
        feed: dict[Any, Any] | None = None,
        after: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.events, self.name = events, name
        self.request = tf.train.SessionRunArgs(fetches, feed)
        self.after = after
        self.sessions: list[tf.Session] = []

    def begin(self) -> None:
        self.events.append(f"{self.name}: begin, finalized {tf.get_default_graph().finalized}")

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        finalized = tf.get_default_graph().finalized
        self.sessions.append(session)
        self.events.append(f"{self.name}: after_create_session, finalized {finalized}")

    def before_run(self, run_context: tf.train.SessionRunContext) -> Any:
        asked = run_context.original_args
        self.events.append(f"{self.name}: before_run {asked.fetches} {asked.feed_dict}")
        empty = self.request == tf.train.SessionRunArgs(None)
        return None if empty else self.request

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        self.events.append(f"{self.name}: after_run {run_values.results}")
        if self.after is not None:
            self.after(run_context, run_values)

    def end(self, session: tf.Session) -> None:
        self.events.append(f"{self.name}: end, stopped {session is None}")


class Model:
    """Counts its steps; every event of its session is noted."""

    def __init__(self, api: Any, events: list[str]) -> None:
        self.step = tf.train.get_or_create_global_step()
        self.feed = tf.placeholder_with_default(1.0, [], name="feed")
        self.other = tf.placeholder_with_default(10.0, [], name="other")
        self.sum = tf.identity(self.feed + self.other, name="sum")
        added = tf.assign_add(self.step, 1)
        self.train_op, self.after = added.op, tf.identity(added)
        self.scaffold = api.Scaffold(
            init_op=self._noting(events, "init_op", tf.global_variables_initializer()),
            init_fn=lambda scaffold, session: events.append("init_fn"),
            local_init_op=self._noting(events, "local_init_op"),
            ready_op=self._ready(events, "ready_op"),
            ready_for_local_init_op=self._ready(events, "ready_for_local_init_op"),
            saver=_NotingSaver(events),
        )

    def _noting(self, events: list[str], name: str, *before: tf.Operation) -> tf.Operation:
        with tf.control_dependencies(before):
            return tf.py_func(lambda: events.append(name), [], [], stateful=True)

    def _ready(self, events: list[str], name: str) -> tf.Tensor:
        noted = self._noting(events, name)
        with tf.control_dependencies([noted]):
            return tf.constant([], tf.string)


class _NotingSaver(tf.train.Saver):
    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def restore(self, sess: tf.Session, save_path: str) -> None:
        self._events.append(f"restore {Path(save_path).name}")
        super().restore(sess, save_path)


Play = Callable[[Any, Events, Path], None]


class Plays(dict[str, tuple[Play, list[str]]]):
    """Plays by name, each with events that TensorFlow is expected to cause."""

    def add(self, *expected: str, name: str = "") -> Callable[[Play], Play]:
        """Returns a decorator that adds a play."""

        def add(function: Play) -> Play:
            self[name or function.__name__] = (function, list(expected))
            return function

        return add

    def perform(self, name: str, folder: Path) -> tuple[list[str], list[str], list[str]]:
        """Returns what is noted with TensorFlow's classes and with ours, and what is expected."""
        function, expected = self[name]
        noted = []
        for api in (tf.train, runner):
            events = Events()
            with tf.Graph().as_default():
                function(api, events, folder / "files")
            noted.append(list(events))
            shutil.rmtree(folder / "files", ignore_errors=True)
        return noted[0], noted[1], expected


def fails(events: Events, call: Callable[[], object]) -> None:
    """Notes the error of a call, its message and its innermost function."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 (it is noted)
        call()
    last = traceback.extract_tb(raised.value.__traceback__)[-1].name
    events.append(f"{type(raised.value).__name__}: {str(raised.value).splitlines()[0]} ({last})")


def raising(error: BaseException) -> Any:
    raise error
