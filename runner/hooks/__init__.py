"""SessionRunHooks, each usable alone; the loop itself only runs the train op."""

from runner.hooks.checkpoint import BestCheckpoint, CheckpointHook
from runner.hooks.early_stopping import EarlyStoppingHook
from runner.hooks.evaluation import EvaluationHook, evaluate
from runner.hooks.finite import FiniteCheck
from runner.hooks.input_state import InputStateHook
from runner.hooks.memory import MemoryHook
from runner.hooks.metrics import MetricsHook
from runner.hooks.nan_loss import NanLossHook
from runner.hooks.profile import ProfileOnDemandHook
from runner.hooks.progress import ProgressHook
from runner.hooks.rewind import RewindHook
from runner.hooks.step_timing import StepTimingHook
from runner.hooks.stop import StopAtStepHook, StopWhenHook
from runner.hooks.summaries import SummariesHook
from runner.hooks.wall_clock import WallClockLimitHook

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
