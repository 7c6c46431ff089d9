"""SessionRunHooks, usable alone or as `_target_: runner.hooks.NAME`, and their helpers.

- `scheduled`: `ScheduledHook`, the base class of hooks that act on a schedule
- `checkpoint`: saves checkpoints and keeps the best; `evaluation_hook`: evaluates
- `stop`: ends training; `nan_loss`: raises, stops or rolls back when the loss is NaN
- `callbacks`: calls Keras callbacks as `fit` does; `callback_state`: their state in checkpoints;
  `final_weights`: leaves the weights that `fit` leaves at the end
- `metrics`: passes training metrics and the cost of steps to a callback, averages metrics between
  evaluations, and writes profiles for TensorBoard; its `RewindHook` tells what is recorded to go
  back to the step of a new session, after a rollback or on resuming
- `progress`: shows how far training is

A hook takes tensors, savers, functions, paths and schedules, not the `RunConfig`; `runner.training`
decides which hooks a run has, and in which order.
"""

from runner.hooks.checkpoint import BestCheckpoint, CheckpointHook, InputStateHook, SavePolicy
from runner.hooks.evaluation_hook import EvaluationCutoff, EvaluationHook
from runner.hooks.metrics import (
    MetricsHook,
    ProfileOnDemandHook,
    RewindHook,
    StepTimingHook,
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
    "WallClockLimitHook",
]
