"""Records training: metrics of its steps, their means, their cost, profiles on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.scheduled import (
    Clock,
    ScheduledHook,
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    present_step,
    require_scalar,
)

# Takes metric name -> value and the global step.
Record: TypeAlias = Callable[[Mapping[str, float], int], None]


class MetricsHook(ScheduledHook):
    """Records scalars at the steps that a schedule names.

    A schedule in seconds is checked before each step, as the values are fetched with it.

    Args:
      values: metric name -> scalar.
      step: the global step after the train op has run.
      every: the schedule; an `end` in it has no effect.
      record: takes the values, as floats, and the step.
      clock: seconds from any origin; for tests.
      one_kind_until: up to this step, every step fetches the values, recorded or not, so that the
        session prepares one kind of step. By default, only the steps that record them do.

    Raises:
      ValueError: when `every` is not a schedule, or `step` or a value not a scalar.
    """

    def __init__(
        self,
        values: Mapping[str, tf.Tensor],
        step: tf.Tensor,
        every: When,
        record: Record,
        clock: Clock = time.monotonic,
        *,
        one_kind_until: int = 0,
    ) -> None:
        super().__init__(step, every, clock=clock)
        for name, value in values.items():
            require_scalar(name, value)
        self._values, self._record, self._one_kind_until = values, record, one_kind_until

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step, and the values where they are due."""
        self._due = self._trigger.due(self._step + 1, self._clock())
        fetched = self._due or self._step < self._one_kind_until
        return SessionRunArgs((self._step_after, dict(self._values) if fetched else {}))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Records the values, if they are due."""
        step, values = run_values.results
        self._step = int(step)
        if self._due and values:
            self._record({name: float(value) for name, value in values.items()}, self._step)


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


class RewindHook(tf.compat.v1.train.SessionRunHook):
    """Calls `rewind` with the global step of every new session.

    A session that resumes, recovers or follows a rollback continues from a checkpoint, and the
    steps after it are recorded again.

    Args:
      rewind: takes the step, as `Tracker.rewind` does.
      step: the global step after the train op has run.
      reach: takes that step too, and every later one when it is done.
    """

    def __init__(
        self, rewind: Callable[[int], None], step: tf.Tensor, reach: Callable[[int], None]
    ) -> None:
        self._rewind, self._step_after, self._reach = rewind, step, reach

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Calls `rewind`, then `reach`."""
        step = present_step(session)
        self._rewind(step)
        self._reach(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step."""
        return SessionRunArgs(self._step_after)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Calls `reach`."""
        self._reach(int(run_values.results))


class StepTimingHook(ScheduledHook):
    """Records means per step since the last record, in seconds.

    `time/step` is all of it: `time/input` the wait for the batch, `time/compute` the rest of the
    session's run, `time/outside` what hooks and the loop take in between.

    Args:
      input_seconds: how long the step waited for its batch, a float scalar.
      step: the global step after the train op has run.
      record: takes the means by name, and the step.
      every: the schedule, by default 100 steps.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        input_seconds: tf.Tensor,
        step: tf.Tensor,
        record: Record,
        every: When = 100,
        clock: Clock = time.perf_counter,
    ) -> None:
        super().__init__(step, every, clock=clock)
        self._input_seconds, self._record = input_seconds, record

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts counting."""
        super().after_create_session(session, coord)
        self._reset(self._clock())

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step and its wait for input."""
        self._started = self._clock()
        return SessionRunArgs((self._step_after, self._input_seconds))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Adds the step to the sums, and records the means where they are due."""
        now = self._clock()
        step, waited = run_values.results
        self._step = int(step)
        self._count += 1
        self._inside += now - self._started
        self._waited += float(waited)
        if self._trigger.due(self._step, now):
            whole = now - self._since
            sums = {
                "time/step": whole,
                "time/input": self._waited,
                "time/compute": self._inside - self._waited,
                "time/outside": whole - self._inside,
            }
            self._record({name: value / self._count for name, value in sums.items()}, self._step)
            self._reset(now)

    def _reset(self, now: float) -> None:
        self._since, self._count, self._inside, self._waited = now, 0, 0.0, 0.0


class ProfileOnDemandHook(ScheduledHook):
    """Profiles a few steps when the file `DIRECTORY/profile` appears, which it removes.

    `touch` makes the file, also from another machine. The profile is written beside it, below
    `plugins/profile/`, where TensorBoard finds it.

    Args:
      directory: where the file appears and the profile is written.
      step: the global step after the train op has run.
      steps: how many steps to profile, by default 5.
      every: how often to check for the file, by default every second.

    Raises:
      ValueError: when `steps` is below 1.
    """

    def __init__(
        self, directory: Path | str, step: tf.Tensor, steps: int = 5, every: When = "1 second"
    ) -> None:
        super().__init__(step, every)
        if steps < 1:
            raise ValueError(f"{steps} steps to profile; at least 1 is needed")
        self._directory, self._steps = Path(directory), steps
        self._until: int | None = None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Ends a profile that an abandoned session left open."""
        super().after_create_session(session, coord)
        self._stop()

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Ends a profile, or checks for the file."""
        super().after_run(run_context, run_values)
        if self._until is not None and self._step >= self._until:
            self._stop()

    def act(self, session: Session, step: int) -> None:
        """Starts a profile if the file is there."""
        request = self._directory / "profile"
        if self._until is None and request.is_file():
            request.unlink()
            tf.profiler.experimental.start(str(self._directory))
            self._until = step + self._steps

    def end(self, session: Session) -> None:
        """Ends a profile that is still open."""
        self._stop()

    def _stop(self) -> None:
        if self._until is not None:
            tf.profiler.experimental.stop()
            self._until = None
