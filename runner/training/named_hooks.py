"""Hooks and callbacks of the configuration, which remember what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from runner.hooks.callbacks import NamedCallback
from runner.system.user_code import ERRORS, staying


class NamedHook(tf.compat.v1.train.SessionRunHook):
    """A hook of the configuration, which remembers the error that it raised, and that it stopped.

    Errors pass through unchanged: a session recovers from some of them.
    """

    def __init__(self, key: str, hook: tf.compat.v1.train.SessionRunHook) -> None:
        self.key, self._hook = key, hook
        self.error: BaseException | None = None
        self.stopped = False

    def begin(self) -> None:
        """Calls the hook."""
        self._call(self._hook.begin)

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Calls the hook."""
        before = coord.should_stop()
        self._call(self._hook.after_create_session, session, coord)
        self.stopped |= coord.should_stop() and not before

    def before_run(self, run_context: Any) -> Any:
        """Calls the hook."""
        return self._call(self._hook.before_run, run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Calls the hook."""
        before = run_context.stop_requested
        self._call(self._hook.after_run, run_context, run_values)
        self.stopped |= run_context.stop_requested and not before

    def end(self, session: tf.compat.v1.Session) -> None:
        """Calls the hook."""
        self._call(self._hook.end, session)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with staying():
                return method(*arguments)
        except ERRORS as error:
            self.error = error
            raise


class StoppingCallback(NamedCallback):
    """A callback of the configuration, which remembers that it stopped the training."""

    stopped = False

    def call(self, method: str, *arguments: Any, **named: Any) -> None:
        """Calls a method, see `NamedCallback`."""
        before = self._stops()
        super().call(method, *arguments, **named)
        self.stopped |= self._stops() and not before

    def _stops(self) -> bool:
        # A callback without `super().__init__()` has no model yet.
        model = getattr(self.callback, "model", None)
        return bool(getattr(model, "stop_training", False))
