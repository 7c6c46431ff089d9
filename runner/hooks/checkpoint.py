"""Saves checkpoints: the newest, the best, and what they keep of the training input."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.choices import Goal
from runner.config.schedule import When
from runner.errors import NonFiniteLossError, Problem, SaveError
from runner.graph.experiment import InputState
from runner.hooks.nan_loss import FiniteCheck
from runner.hooks.scheduled import (
    Clock,
    RunContext,
    RunValues,
    ScheduledHook,
    Session,
    present_step,
)
from runner.runs.saved_checkpoints import is_save_error, save
from runner.system.atomic_files import write_json

_Saver: TypeAlias = tf.compat.v1.train.Saver

# Takes the names of variables that hold NaN or infinity, and the global step.
Refuse: TypeAlias = Callable[[Sequence[str], int], None]
# Takes why a save failed.
OnSaveError: TypeAlias = Callable[[SaveError], None]


def non_finite_problem(names: Sequence[str], step: int) -> Problem:
    """Returns the problem of weights that are not saved."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Problem(
        f"step {step} is not saved",
        f"NaN or infinity in {shown}",
        "look at the data, the learning rate and train.clip",
    )


def raise_non_finite(names: Sequence[str], step: int) -> None:
    """Raises NonFiniteLossError."""
    raise NonFiniteLossError(non_finite_problem(names, step))


def raise_save_error(error: SaveError) -> None:
    """Raises the error."""
    raise error


def warned(warn: Callable[[str], None]) -> OnSaveError:
    """Returns a function that warns of a failure instead of raising it."""
    return lambda error: warn(
        f"warning: {error}\n  training continues, and the next save is the next try"
    )


class CheckpointHook(ScheduledHook):
    """Saves on a schedule and at the end.

    Unlike `tf.compat.v1.train.CheckpointSaverHook` it writes neither the graph nor summaries, and
    nothing at the start; and it saves only finite values.

    Args:
      saver: saves, and keeps as many checkpoints as its `max_to_keep`.
      directory: where the checkpoints are written.
      step: the global step after the train op has run.
      every: the schedule.
      finite: looks for NaN and infinity before each save; None, the default, saves any values.
      refuse: takes the variables that hold them, and the step, which is then not saved; by default
        it raises NonFiniteLossError.
      on_error: takes the error of a failed save, such as a full disk; by default it raises it. If
        it returns, the next save is the next try. A failure at the end is always raised.
      others_train: whether other workers increase the step while earlier hooks act; a checkpoint
        is then named after the step at which it is saved. False by default.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        saver: _Saver,
        directory: Path,
        step: tf.Tensor,
        every: When,
        finite: FiniteCheck | None = None,
        refuse: Refuse = raise_non_finite,
        on_error: OnSaveError = raise_save_error,
        *,
        others_train: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(step, every, at_end=True, clock=clock)
        self._saver, self._directory = saver, directory
        self._finite, self._refuse, self._on_error = finite, refuse, on_error
        self._others_train = others_train

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts the schedule; a step that is already saved is not saved again."""
        super().after_create_session(session, coord)
        newest = tf.train.latest_checkpoint(str(self._directory))
        if newest and newest.endswith(f"-{self._step}"):
            self._trigger.done(self._step)

    def act(self, session: Session, step: int) -> None:
        """Saves."""
        if self._others_train:
            step = present_step(session)
        names = self._finite.non_finite(session) if self._finite else []
        if names:
            self._refuse(names, step)
            return
        try:
            saved(session, self._saver, self._directory, step)
        except SaveError as error:
            self._trigger.failed()
            self._on_error(error)

    def end(self, session: Session) -> None:
        """Saves the last step.

        Raises:
          SaveError: when that fails: there is no next try.
        """
        self._on_error = raise_save_error
        super().end(session)


class BestCheckpoint:
    """Keeps the checkpoint with the best objective.

    Beside it `best.json` holds its step and metrics, which a resumed run compares with.

    Args:
      saver: the saver whose operations are used; its own list of files is not changed.
      directory: where the best checkpoint is written.
      record: the file for step and metrics.
      objective: the name of the metric that decides.
      goal: whether larger or smaller is better.
      finite: keeps variables that hold NaN or infinity from being saved; None does not look.
      on_error: takes the error of a failed save; if it returns, the former best is kept.
    """

    def __init__(
        self,
        saver: _Saver,
        directory: Path,
        record: Path,
        objective: str,
        goal: Goal,
        finite: FiniteCheck | None = None,
        on_error: OnSaveError = raise_save_error,
    ) -> None:
        self._saver = another_saver(saver, 1)
        self._directory, self._record = directory, record
        self._objective, self._goal, self._finite = objective, goal, finite
        self._on_error = on_error

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
        if self._finite is not None and self._finite.non_finite(session):
            return False
        try:
            saved(session, self._saver, self._directory, step)
            write_json(self._record, {"step": step, "metrics": dict(metrics)})
        except SaveError as error:
            self._on_error(error)
            return False
        except OSError as error:
            self._on_error(_save_error(self._directory, step, error))
            return False
        return True

    def _beats(self, value: float, best: float) -> bool:
        if math.isnan(best):
            return not math.isnan(value)
        return value > best if self._goal is Goal.maximize else value < best


def another_saver(saver: _Saver, max_to_keep: int) -> _Saver:
    """Returns a saver of the same operations that manages a list of files of its own."""
    definition = tf.compat.v1.train.SaverDef()
    definition.CopyFrom(saver.as_saver_def())
    definition.max_to_keep = max_to_keep
    return _Saver(saver_def=definition, save_relative_paths=True)


def saved(session: Session, saver: _Saver, directory: Path, step: int) -> None:
    """Saves `directory/model.ckpt-<step>`; see `runner.runs.saved_checkpoints.save`.

    Raises:
      SaveError: when it could not be written.
    """
    try:
        save(session, saver, directory, step)
    except Exception as error:
        if not is_save_error(error, directory):
            raise
        raise _save_error(directory, step, error) from error


def _save_error(directory: Path, step: int, error: Exception) -> SaveError:
    lines = [line.strip() for line in str(error).splitlines()]
    files = [line for line in lines if str(directory) in line]
    return SaveError(
        Problem(
            f"step {step} is not saved",
            (files or lines or [type(error).__name__])[0],
            "check the disk; checkpoint.on_error decides whether training continues",
        )
    )


# A server was lost: no matter of the input, and a monitored session recovers from these errors.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)


class InputStateHook(tf.compat.v1.train.SessionRunHook):
    """Tries after the first step whether the input's position can be saved.

    Only then do all its iterators exist. A position that cannot be saved is left out of
    checkpoints, which hold everything else all the same.

    Args:
      state: the input's state.
      warn: takes a line about what checkpoints will not hold.
    """

    def __init__(self, state: InputState, warn: Callable[[str], None]) -> None:
        self._state, self._warn = state, warn

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts anew: a new session saves the position until it is tried."""
        self._tried = False

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Tries once.

        Raises:
          tf.errors.OpError: a server was lost meanwhile; the next session tries again.
        """
        if self._tried:
            return
        self._tried = True
        session = run_context.session
        try:
            session.run(self._state.serialize_strictly)
            return
        except _LOST:
            raise
        except tf.errors.OpError as error:
            refused = error
        try:
            session.run(self._state.serialize)
        except _LOST:
            raise
        except tf.errors.OpError as error:
            session.run(self._state.leave_out)
            self._warn(
                f"input: its position is not saved ({_reason(error)}); a resumed run begins with "
                "its first batch"
            )
            return
        if not isinstance(refused, tf.errors.FailedPreconditionError):
            raise refused
        self._warn(
            f"input: its position is saved, but not all its state ({_reason(refused)}); a "
            "resumed run may see other batches"
        )


def _reason(error: tf.errors.OpError) -> str:
    """Returns the last line that is not about a node of the graph or a message between servers."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    known = [line for line in lines if line and not line.startswith("[[")]
    return ([line for line in known if "grpc" not in line.lower()] or known)[-1]
