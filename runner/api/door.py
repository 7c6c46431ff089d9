"""How errors leave the door from Python, and what a run puts back in the process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from runner.errors import RunnerError, UserCodeError
from runner.system.user_code import FULL, staying, unchanged_random_states

_P = ParamSpec("_P")
_T = TypeVar("_T")


def door(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wraps a function to raise the errors of its user as their message, without inner frames."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except RunnerError as error:
            if os.environ.get(FULL) == "1":
                raise
            if isinstance(error, UserCodeError) and error.details:
                # Python 3.10 has no notes.
                getattr(error, "add_note", print)(error.details)
            raise error.with_traceback(None) from None

    return call


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Puts back what a run changes in the process; a run begins with the same state in any case."""
    from runner.internals.keras import restored_names
    from runner.internals.tensorflow import restored_seed

    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)  # Its own Saver uses deprecated parts, which it warns about.
    try:
        with unchanged_random_states(), staying(), restored_names(), restored_seed():
            yield
    finally:
        logger.setLevel(level)
