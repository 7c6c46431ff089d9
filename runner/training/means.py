"""Means of what a run has recorded of its training since its last evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


class TrainingMeans:
    """Means of training metrics over the recorded steps since the last evaluation.

    Args:
      names: the metrics to average; others are ignored.
      history: returns step -> metric -> value of what the run has recorded so far, sorted.
    """

    def __init__(
        self, names: Iterable[str], history: Callable[[], Mapping[int, Mapping[str, float]]]
    ) -> None:
        self._names, self._history = tuple(names), history
        self._recorded: list[Mapping[str, float]] = []

    def rewind(self, step: int) -> None:
        """Continues from what was recorded up to `step`, as a session that resumes does."""
        self._recorded = []
        if not self._names:
            return
        for at, values in self._history().items():
            if at > step:
                break
            self.add({name.removeprefix("train/"): value for name, value in values.items()})
            if any(name.startswith("validation/") for name in values):
                self._recorded = []

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the values of a recorded step; values that lack a metric are of no such step."""
        if self._names and all(name in values for name in self._names):
            self._recorded.append(values)

    def take(self) -> dict[str, float]:
        """Returns the means, and starts over; they are empty where no step was recorded."""
        recorded, self._recorded = self._recorded, []
        if not recorded:
            return {}
        return {name: sum(step[name] for step in recorded) / len(recorded) for name in self._names}
