"""Keeps the newest checkpoints and the best one."""

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
from runner.hooks.nan_loss import FiniteCheck
from runner.hooks.scheduled import Clock, ScheduledHook, present_step
from runner.runs.saved_checkpoints import is_save_error, save
from runner.system.atomic_files import write_json

_Saver: TypeAlias = tf.compat.v1.train.Saver
_Session: TypeAlias = tf.compat.v1.Session

# Takes the names of variables that hold NaN or infinity, and the global step.
Refuse: TypeAlias = Callable[[Sequence[str], int], None]
# Takes why a save failed.
OnSaveError: TypeAlias = Callable[[SaveError], None]


def non_finite_problem(names: Sequence[str], step: int) -> Problem:
    """The problem of weights that are not saved."""
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
    """Raises it."""
    raise error


def warned(say: Callable[[str], None]) -> OnSaveError:
    """Returns what says a failure instead of raising it."""
    return lambda error: say(
        f"warning: {error}\n  training goes on, and the next save is the next try"
    )


class CheckpointHook(ScheduledHook):
    """Saves on a schedule and at the end.

    Unlike `tf.compat.v1.train.CheckpointSaverHook` it writes neither the graph nor summaries, and
    nothing at the start; and it saves nothing that is not finite.
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
        """Stores its arguments.

        Args:
          saver: saves, and keeps as many as its `max_to_keep`.
          directory: where the checkpoints go.
          step: the global step after the train op has run.
          every: the schedule.
          finite: looks for NaN and infinity before each save; None saves whatever there is.
          refuse: is given the variables that hold them, and the step; nothing is saved then.
          on_error: is given why a save failed, such as a full disk; if it does not raise, the next
            save is the next try. A failure at the end is raised in any case.
          others_train: whether other workers move the step on while earlier hooks act; a
            checkpoint is then of the step at which it is saved.
          clock: seconds from any origin.
        """
        super().__init__(step, every, at_end=True, clock=clock)
        self._saver, self._directory = saver, directory
        self._finite, self._refuse, self._on_error = finite, refuse, on_error
        self._others_train = others_train

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Learns the step, and whether it is already saved."""
        super().after_create_session(session, coord)
        newest = tf.train.latest_checkpoint(str(self._directory))
        if newest and newest.endswith(f"-{self._step}"):
            self._trigger.done(self._step)

    def act(self, session: _Session, step: int) -> None:
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

    def end(self, session: _Session) -> None:
        """Saves the last step.

        Raises:
          SaveError: when that fails: there is no next time.
        """
        self._on_error = raise_save_error
        super().end(session)


class BestCheckpoint:
    """Keeps the checkpoint with the best objective.

    Beside it `best.json` holds its step and metrics, by which a resumed run knows what to beat.
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
        """Stores its arguments.

        Args:
          saver: the saver whose operations are used; its own list of files is left alone.
          directory: where the best checkpoint goes.
          record: the file for step and metrics.
          objective: the name of the metric that decides.
          goal: whether larger or smaller is better.
          finite: keeps variables that hold NaN or infinity from being saved; None does not look.
          on_error: is given why a save failed; if it does not raise, the best stays what it was.
        """
        self._saver = another_saver(saver, 1)
        self._directory, self._record = directory, record
        self._objective, self._goal, self._finite = objective, goal, finite
        self._on_error = on_error

    def best(self) -> float | None:
        """Returns the best objective so far, or None before the first evaluation."""
        if not self._record.is_file():
            return None
        return float(json.loads(self._record.read_text())["metrics"][self._objective])

    def offer(self, session: _Session, metrics: Mapping[str, float], step: int) -> bool:
        """Saves if the objective among `metrics` beats the best so far; says whether it did.

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
    """Returns a saver over the same operations that manages a list of files of its own."""
    definition = tf.compat.v1.train.SaverDef()
    definition.CopyFrom(saver.as_saver_def())
    definition.max_to_keep = max_to_keep
    return _Saver(saver_def=definition, save_relative_paths=True)


def saved(session: _Session, saver: _Saver, directory: Path, step: int) -> None:
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
            "see to the disk; checkpoint.on_error says whether training goes on",
        )
    )
