"""Epochs of a training, as `keras.Model.fit` counts them, in global steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Epochs:
    """Where epochs begin and end.

    Attributes:
      length: the global steps of an epoch.
      of_pass: the global steps of a pass over the data, at whose end the epoch ends too, so that
        it may be shorter; None where an epoch continues in the next pass.
      first: how many epochs count as done before the first step.
      meets_end: whether only a step without a batch tells that a pass is over, as for data of
        unknown length. An epoch that begins there has no step at all.
    """

    length: int
    of_pass: int | None = None
    first: int = 0
    meets_end: bool = False

    def done(self, step: int) -> int:
        """Returns how many epochs are over after a step, which is the index of the next one."""
        if self.of_pass is None:
            return self.first + step // self.length
        passes, rest = divmod(step, self.of_pass)
        return self.first + passes * self._in_pass + rest // self.length

    def place(self, step: Any) -> Any:
        """Returns how many steps of its epoch are over after a step, which may be a tensor."""
        return (step if self.of_pass is None else step % self.of_pass) % self.length

    def steps(self, epochs: int) -> int:
        """Returns the step after which so many epochs are over."""
        count = epochs - self.first
        if self.of_pass is None:
            return count * self.length
        passes, rest = divmod(count, self._in_pass)
        return passes * self.of_pass + min(rest * self.length, self.of_pass)

    @property
    def _in_pass(self) -> int:
        """The number of epochs of a pass."""
        assert self.of_pass is not None
        if self.meets_end:
            return self.of_pass // self.length + 1
        return -(-self.of_pass // self.length)


def step_logs_in_order(logs: Any) -> Any:
    """Returns what a step returns, mappings of mappings, in the order of the logs of `fit`."""
    if not isinstance(logs, Mapping):
        return logs
    return {name: step_logs_in_order(value) for name, value in sorted(logs.items())}


def logs_in_order(logs: Mapping[str, float]) -> dict[str, float]:
    """Returns the logs of an epoch in the order of `fit`.

    Args:
      logs: the metrics of the training in the order of its steps, and `val_...` of an evaluation.
    """
    validation = sorted(name for name in logs if name.startswith("val_"))
    training = [name for name in logs if not name.startswith("val_")]
    before = [name for name in training if name < "val_"]
    after = [name for name in training if name > "val_"]
    return {name: logs[name] for name in (*before, *validation, *after)}
