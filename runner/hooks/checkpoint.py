"""Keeps the newest checkpoints and the best one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config import Goal

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Saver: TypeAlias = tf.compat.v1.train.Saver
_Session: TypeAlias = tf.compat.v1.Session

PREFIX = "model.ckpt"


class CheckpointHook(tf.compat.v1.train.SessionRunHook):
    """Saves every so many steps and at the end.

    Unlike `tf.compat.v1.train.CheckpointSaverHook` it writes neither the graph nor summaries, and
    nothing at the start.
    """

    def __init__(self, saver: _Saver, directory: Path, step: tf.Tensor, every: int) -> None:
        """Stores its arguments.

        Args:
          saver: saves, and keeps as many as its `max_to_keep`.
          directory: where the checkpoints go.
          step: the global step after the train op has run.
          every: how many steps apart.
        """
        self._saver, self._directory = saver, directory
        self._step_after, self._every = step, every
        self._step = 0
        self._saved: int | None = None

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Learns the step, and whether it is already saved."""
        self._step = int(session.run(tf.compat.v1.train.get_global_step()))
        newest = tf.train.latest_checkpoint(str(self._directory))
        if newest and newest.endswith(f"-{self._step}"):
            self._saved = self._step

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the step."""
        return _RunArgs(self._step_after)

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Saves where it is due."""
        self._step = int(run_values.results)
        if self._step % self._every == 0:
            self._save(run_context.session)

    def end(self, session: _Session) -> None:
        """Saves the last step, unless that is done."""
        if self._saved != self._step:
            self._save(session)

    def _save(self, session: _Session) -> None:
        save(session, self._saver, self._directory, self._step)
        self._saved = self._step


class BestCheckpoint:
    """Keeps the checkpoint with the best objective.

    Beside it `best.json` holds its step and metrics, by which a resumed run knows what to beat.
    """

    def __init__(
        self, saver: _Saver, directory: Path, record: Path, objective: str, goal: Goal
    ) -> None:
        """Stores its arguments.

        Args:
          saver: the saver whose operations are used; its own list of files is left alone.
          directory: where the best checkpoint goes.
          record: the file for step and metrics.
          objective: the name of the metric that decides.
          goal: whether larger or smaller is better.
        """
        # The same operations under another Saver: it manages a list of files of its own.
        definition = tf.compat.v1.train.SaverDef()
        definition.CopyFrom(saver.as_saver_def())
        definition.max_to_keep = 1
        self._saver = _Saver(saver_def=definition, save_relative_paths=True)
        self._directory, self._record = directory, record
        self._objective, self._goal = objective, goal

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
        state = tf.train.get_checkpoint_state(str(self._directory))
        if state is not None:
            self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        save(session, self._saver, self._directory, step)
        temporary = self._record.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": step, "metrics": dict(metrics)}, indent=2))
        temporary.replace(self._record)
        return True

    def _beats(self, value: float, best: float) -> bool:
        if math.isnan(best):
            return not math.isnan(value)
        return value > best if self._goal is Goal.maximize else value < best


def save(session: _Session, saver: _Saver, directory: Path, step: int) -> None:
    """Saves `directory/model.ckpt-<step>` without the graph."""
    directory.mkdir(parents=True, exist_ok=True)
    saver.save(session, str(directory / PREFIX), global_step=step, write_meta_graph=False)
