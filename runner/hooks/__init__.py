"""SessionRunHooks, each usable alone or as `_target_: runner.hooks.NAME`, and their helpers.

scheduled.py has the base of those that act on a schedule. checkpoint.py saves checkpoints and
chooses the best, evaluation.py evaluates, stop.py ends training, nan_loss.py reacts to a loss that
is NaN; metrics.py hands training metrics and what steps cost to a callback, and writes summaries
and profiles for TensorBoard; progress.py shows how far training is.

A hook takes tensors, savers, functions, paths and schedules, not the `RunConfig`: which hooks a run
has, and in which order, is decided in `runner.training`.
"""

from runner.hooks.checkpoint import BestCheckpoint, CheckpointHook, InputStateHook, SavePolicy
from runner.hooks.evaluation import EvaluationCutoff, EvaluationHook
from runner.hooks.metrics import (
    MemoryHook,
    MetricsHook,
    ProfileOnDemandHook,
    RewindHook,
    StepTimingHook,
    SummariesHook,
)
from runner.hooks.nan_loss import FiniteCheck, NanLossHook, NanLossPolicy
from runner.hooks.progress import ProgressHook
from runner.hooks.stop import EarlyStoppingHook, StopAtStepHook, StopWhenHook, WallClockLimitHook

__all__ = [
    "BestCheckpoint",
    "CheckpointHook",
    "EarlyStoppingHook",
    "EvaluationCutoff",
    "EvaluationHook",
    "FiniteCheck",
    "InputStateHook",
    "MemoryHook",
    "MetricsHook",
    "NanLossHook",
    "NanLossPolicy",
    "ProfileOnDemandHook",
    "ProgressHook",
    "RewindHook",
    "SavePolicy",
    "StepTimingHook",
    "StopAtStepHook",
    "StopWhenHook",
    "SummariesHook",
    "WallClockLimitHook",
]
