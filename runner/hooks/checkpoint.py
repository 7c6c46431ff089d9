"""Saves the newest checkpoints and the best, and checks what they hold of the training input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.choices import Goal
from runner.config.schedule import When
from runner.console import some_of
from runner.errors import ConfigError, NonFiniteLossError, RunnerError, SaveError
from runner.graph.input_pipeline import InputState
from runner.hooks.nan_loss import FiniteCheck
from runner.hooks.scheduled import (
    ScheduledHook,
    Session,
    SessionRunContext,
    SessionRunValues,
    present_step,
)
from runner.runs.saved_checkpoints import is_save_error, save
from runner.system.atomic_files import write_json

_Saver: TypeAlias = tf.compat.v1.train.Saver


def raise_error(error: RunnerError) -> None:
    """Raises the error."""
    raise error


@dataclass(frozen=True)
class SavePolicy:
    """The values that are not saved, and how hooks react when a step is not saved.

    Attributes:
      finite: checks variables for NaN and infinity before a save; None, the default, saves any
        values.
      on_non_finite: takes the error that names such variables; by default raises it.
      on_error: takes the error of a failed save, such as a full disk; by default raises it.
    """

    finite: FiniteCheck | None = None
    on_non_finite: Callable[[NonFiniteLossError], None] = raise_error
    on_error: Callable[[SaveError], None] = raise_error


def warned(warn: Callable[[str], None]) -> Callable[[SaveError], None]:
    """Returns an `on_error` that warns instead of raising the error."""
    return lambda error: warn(
        f"warning: {error}\n  training continues, and the next save is the next try"
    )


class SavedBeside:
    """State outside of the session that is saved with it; by default nothing.

    Attributes:
      changed_at_end: whether the session has changed after its last step.
    """

    changed_at_end: bool = False

    def store(self, session: Session) -> None:
        """Makes the session hold the state."""


class CheckpointHook(ScheduledHook):
    """Saves on a schedule and at the end.

    Unlike `tf.compat.v1.train.CheckpointSaverHook` it writes neither the graph nor summaries, and
    nothing at the start; and it saves only finite values.

    Args:
      saver: saves, and keeps as many checkpoints as its `max_to_keep`.
      directory: where the checkpoints are written.
      step: the global step after the train op has run.
      every: the schedule.
      policy: how to react when a step is not saved; if it raises nothing, the next save is the
        next try. A failure at the end is always raised.
      beside: state that is saved too.
    """

    def __init__(
        self,
        saver: _Saver,
        directory: Path,
        step: tf.Tensor,
        every: When,
        policy: SavePolicy | None = None,
        beside: SavedBeside | None = None,
    ) -> None:
        super().__init__(step, every, at_end=True)
        self._saver, self._directory = saver, directory
        self._policy, self._beside = policy or SavePolicy(), beside or SavedBeside()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts the schedule; a step that is already saved is not saved again."""
        super().after_create_session(session, coord)
        newest = tf.train.latest_checkpoint(str(self._directory))
        if newest and newest.endswith(f"-{self._step}"):
            self._trigger.done(self._step)

    def act(self, session: Session, step: int) -> None:
        """Saves."""
        step = present_step(session)  # Other workers may have trained while earlier hooks acted.
        if self._policy.finite and (names := self._policy.finite.non_finite(session)):
            self._policy.on_non_finite(_non_finite(names, step))
            return
        self._beside.store(session)
        try:
            with save_errors(self._directory, step):
                save(session, self._saver, self._directory, step)
        except SaveError as error:
            self._trigger.failed()
            self._policy.on_error(error)

    def end(self, session: Session) -> None:
        """Saves the last step.

        Raises:
          SaveError: when that fails: there is no next try.
        """
        self._policy = replace(self._policy, on_error=raise_error)
        if self._beside.changed_at_end:
            self._trigger.failed()
        super().end(session)


class BestCheckpoint:
    """Keeps the checkpoint with the best objective.

    Beside it `best.json` holds its step and metrics, which a resumed run compares with.

    Args:
      saver: provides the operations; its list of files is not changed.
      directory: where the best checkpoint is written.
      record: the file for step and metrics.
      objective: the name of the metric that decides.
      goal: whether larger or smaller is better.
      policy: how to react when a save fails; if it raises nothing, the former best stays, as it
        always does when the values are not finite.
    """

    def __init__(
        self,
        saver: _Saver,
        directory: Path,
        record: Path,
        objective: str,
        goal: Goal,
        policy: SavePolicy | None = None,
    ) -> None:
        self._saver = another_saver(saver, 1)
        self._directory, self._record = directory, record
        self._objective, self._goal = objective, goal
        self._policy = policy or SavePolicy()

    def best(self) -> float | None:
        """Returns the best objective so far, or None before the first evaluation."""
        if not self._record.is_file():
            return None
        return float(json.loads(self._record.read_text())["metrics"][self._objective])

    def offer(self, session: Session, metrics: Mapping[str, float], step: int) -> bool:
        """Saves if the objective among `metrics` beats the best so far; returns whether it did.

        Any number beats NaN.
        """
        value, best = metrics[self._objective], self.best()
        if best is not None and not self._beats(value, best):
            return False
        if self._policy.finite and self._policy.finite.non_finite(session):
            return False
        try:
            with save_errors(self._directory, step):
                save(session, self._saver, self._directory, step)
                write_json(self._record, {"step": step, "metrics": dict(metrics)})
        except SaveError as error:
            self._policy.on_error(error)
            return False
        return True

    def _beats(self, value: float, best: float) -> bool:
        if math.isnan(best):
            return not math.isnan(value)
        return value > best if self._goal is Goal.maximize else value < best


def another_saver(saver: _Saver, max_to_keep: int) -> _Saver:
    """Returns a saver with the same operations and another list of files."""
    definition = tf.compat.v1.train.SaverDef()
    definition.CopyFrom(saver.as_saver_def())
    definition.max_to_keep = max_to_keep
    return _Saver(saver_def=definition, save_relative_paths=True)


@contextmanager
def save_errors(directory: Path, step: int) -> Iterator[None]:
    """Turns the errors of a disk that cannot be written into SaveErrors."""
    try:
        yield
    except Exception as error:
        if not is_save_error(error, directory):
            raise
        lines = [line.strip() for line in str(error).splitlines()]
        files = [line for line in lines if str(directory) in line]
        raise SaveError.of(
            f"step {step} is not saved",
            (files or lines or [type(error).__name__])[0],
            "make room or restore access; checkpoint.on_error decides whether training "
            "continues, and the same command continues a run that ended, with the same result",
        ) from error


def _non_finite(names: list[str], step: int) -> NonFiniteLossError:
    return NonFiniteLossError.of(
        f"step {step} is not saved",
        f"NaN or infinity in {some_of(names, 3)}",
        "look at the data, the learning rate and train.clip",
    )


# A server was lost; a monitored session recovers from these errors.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)


class InputStateHook(tf.compat.v1.train.SessionRunHook):
    """Tries after the first step, when all iterators exist, to save the input's position.

    Args:
      state: the input's state.
      warn: takes a line about state of the input that checkpoints will not hold.
    """

    def __init__(self, state: InputState, warn: Callable[[str], None]) -> None:
        self._state, self._warn = state, warn

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Tries again in a new session."""
        self._tried = False

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Tries once.

        Raises:
          ConfigError: the position cannot be saved.
          tf.errors.OpError: a server was lost meanwhile; the next session tries again.
        """
        if self._tried:
            return
        self._tried = True
        session = run_context.session
        incomplete = _error_of(session, self._state.serialize_strictly)
        if incomplete is None:
            return
        error = _error_of(session, self._state.serialize)
        if error is not None:
            raise ConfigError.of(
                "the position in the training data cannot be saved",
                _reason(error),
                "train.save_input=false lets a resumed run begin with the first batch; a generator "
                "resumes exactly as runner.inputs.GeneratorData",
            ) from error
        if not isinstance(incomplete, tf.errors.FailedPreconditionError):
            raise incomplete
        reason = _reason(incomplete)
        remedy = ""
        if "stateful" in reason:
            remedy = (
                " To see the same, draw by tf.random.stateless_uniform and its relatives, with"
                " seeds that tf.data.Dataset.random(seed=1) gives, zipped to the data"
            )
        self._warn(
            f"input: a resumed run continues at the same place of the data, but sees other batches"
            f" than one that was not interrupted: {reason}{remedy}"
        )


def _error_of(session: Session, operation: tf.Operation) -> tf.errors.OpError | None:
    """Runs an operation and returns its error, unless that is a lost server."""
    try:
        session.run(operation)
    except _LOST:
        raise
    except tf.errors.OpError as error:
        return error
    return None


def _reason(error: tf.errors.OpError) -> str:
    """Returns the last line that is not about a node of the graph or a message between servers."""
    stripped = [line.strip() for line in str(error.message).splitlines()]
    lines = [line for line in stripped if line and not line.startswith("[[")]
    return ([line for line in lines if "grpc" not in line.lower()] or lines)[-1]
