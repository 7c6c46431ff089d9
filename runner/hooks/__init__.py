"""SessionRunHooks, each usable alone; the loop itself only runs the train op."""

from runner.hooks.checkpoint import BestCheckpoint, CheckpointHook
from runner.hooks.early_stopping import EarlyStoppingHook
from runner.hooks.evaluation import EvaluationHook, evaluate
from runner.hooks.input_state import InputStateHook
from runner.hooks.measurements import MemoryHook, StepTimingHook
from runner.hooks.metrics import MetricsHook, RewindHook
from runner.hooks.nan_loss import FiniteCheck, NanLossHook
from runner.hooks.profile import ProfileOnDemandHook
from runner.hooks.progress import ProgressHook
from runner.hooks.stop import StopAtStepHook, StopWhenHook, WallClockLimitHook
from runner.hooks.summaries import SummariesHook

__all__ = [
    "BestCheckpoint",
    "CheckpointHook",
    "EarlyStoppingHook",
    "EvaluationHook",
    "FiniteCheck",
    "InputStateHook",
    "MemoryHook",
    "MetricsHook",
    "NanLossHook",
    "ProfileOnDemandHook",
    "ProgressHook",
    "RewindHook",
    "StepTimingHook",
    "StopAtStepHook",
    "StopWhenHook",
    "SummariesHook",
    "WallClockLimitHook",
    "evaluate",
]
