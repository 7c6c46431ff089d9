"""Schedules: every so many steps or seconds, at given steps, at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from runner.config.epochs import Epochs

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(step|epoch|second|minute|hour)s?")
_STEP = re.compile(r"at (epoch )?(\d+)")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
_FORMS = "a number of steps, `50 steps`, `30 seconds`, `10 minutes`, `2 hours` or `at 100`"
NEVER = "never"
"""The schedule of what does not happen."""


@dataclass(frozen=True)
class Schedule:
    """The steps and times at which something is due; each field that is set adds some.

    Attributes:
      steps: at every multiple of this number of global steps.
      seconds: this many seconds after it was last due, or after the start.
      at_steps: at these global steps.
      at_end: at the end, unless it was due at the last step already.
      epochs: at the end of every so many epochs.
      at_epochs: at the end of these epochs, from 1.
      counted: where epochs end, for the two before.

    Raises:
      ValueError: when `steps`, `seconds` or `epochs` is not above 0.
    """

    steps: int | None = None
    seconds: float | None = None
    at_steps: tuple[int, ...] = ()
    at_end: bool = False
    epochs: int | None = None
    at_epochs: tuple[int, ...] = ()
    counted: Epochs | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "seconds", "epochs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"every {value} {name}; it must be more than 0")

    @property
    def counts_epochs(self) -> bool:
        """Whether it depends on the length of an epoch."""
        return self.epochs is not None or bool(self.at_epochs)

    def due_by_epochs(self, before: int, step: int) -> bool:
        """Returns whether an epoch that it names ends after the step `before` and up to `step`."""
        if not self.counts_epochs or self.counted is None:
            return False
        return self._names(self.counted.done(before), self.counted.done(step))

    def due_where_epoch_ends(self, step: int) -> bool:
        """Returns whether it is due at a step with which training stops within an epoch."""
        if self.at_end or self.counted is None:
            return self.at_end
        index = self.counted.done(step - 1)
        return self._names(index, index + 1)

    def _names(self, done: int, now: int) -> bool:
        """Whether it names an epoch that ends as the number of finished ones rises to `now`."""
        every = self.epochs is not None and now // self.epochs > done // self.epochs
        return every or any(done < epoch <= now for epoch in self.at_epochs)


When: TypeAlias = Schedule | int | str


def as_schedule(when: When) -> Schedule:
    """Reads a schedule as configs spell it.

    Args:
      when: a number of steps; a string such as `50 steps`, `30 seconds`, `10 minutes`, `2 hours`,
        `at 100` (the step) or `end`, several of them joined by commas. Where training counts
        epochs, also `2 epochs` and `at epoch 3`, after these.

    Raises:
      ValueError: when it is not one of these.
    """
    if isinstance(when, Schedule):
        return when
    if isinstance(when, int) and not isinstance(when, bool):
        return Schedule(steps=when)
    if isinstance(when, str):
        return _parse(when)
    raise ValueError(f"{when!r} is not a schedule; write {_FORMS}")


def as_seconds(duration: float | str) -> float:
    """Reads a duration: a number of seconds, or a string such as `90 minutes`.

    Raises:
      ValueError: when it is neither, or not above 0.
    """
    if isinstance(duration, str):
        amount = _AMOUNT.fullmatch(duration.strip())
        if amount is None or amount[2] in ("step", "epoch"):
            raise ValueError(f"{duration!r} is not a duration; it is for example `90 minutes`")
        duration = float(amount[1]) * _SECONDS[amount[2]]
    if duration <= 0:
        raise ValueError(f"a duration of {duration} seconds; it must be more than 0")
    return float(duration)


class Trigger:
    """Follows a schedule through one session; its caller passes the time and the step."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.start(0, 0.0)

    def start(self, step: int, seconds: float) -> None:
        """Begins at a global step and a time in seconds from any origin."""
        self._seen, self._since = step, seconds
        self._done: int | None = None

    def due(self, step: int, seconds: float) -> bool:
        """Returns whether it is due, and if so marks it as done.

        A multiple or a step that was skipped is due at the next step.
        """
        before, self._seen = self._seen, step
        schedule = self._schedule
        due = (
            (schedule.steps is not None and step // schedule.steps > before // schedule.steps)
            or (schedule.seconds is not None and seconds - self._since >= schedule.seconds)
            or any(before < at_step <= step for at_step in schedule.at_steps)
            or schedule.due_by_epochs(before, step)
        )
        if due:
            self._since = seconds
            self.done(step)
        return due

    def done(self, step: int) -> None:
        """Marks a step as done, so that it is not due again at the end."""
        self._done = step

    def failed(self) -> None:
        """Marks the last step as not done, so that it is due at the end."""
        self._done = None

    def due_where_epoch_ends(self, step: int) -> bool:
        """Whether the last step is still due, where training stops within an epoch."""
        return self._done != step and self._schedule.due_where_epoch_ends(step)

    def due_at_end(self, step: int) -> bool:
        """Whether the last step is still due."""
        return self._schedule.at_end and self._done != step


def _parse(text: str) -> Schedule:
    fields: dict[str, Any] = {}
    for part in map(str.strip, text.split(",")):
        amount, step = _AMOUNT.fullmatch(part), _STEP.fullmatch(part)
        if part == NEVER:
            continue
        if part == "end":
            fields["at_end"] = True
        elif step is not None:
            name = "at_epochs" if step[1] else "at_steps"
            fields[name] = (*fields.get(name, ()), int(step[2]))
        elif amount is None:
            raise ValueError(f"{part!r} is not a schedule; write {_FORMS}, or `end`")
        elif amount[2] not in ("step", "epoch"):
            fields["seconds"] = as_seconds(part)
        elif amount[1].isdecimal():
            fields[f"{amount[2]}s"] = int(amount[1])
        else:
            raise ValueError(f"{part!r} is not a whole number of {amount[2]}s")
    return Schedule(**fields)
