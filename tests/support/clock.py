"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """Seconds that pass only when a test sets them, or by `tick` at each call."""

    def __init__(self, tick: float = 0.0) -> None:
        self.seconds, self._tick = 100.0, tick

    def __call__(self) -> float:
        self.seconds += self._tick
        return self.seconds
