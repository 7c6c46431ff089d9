"""SessionRunHooks, each usable alone; the loop itself only runs the train op."""

from runner.hooks.checkpoint import BestCheckpoint, CheckpointHook
from runner.hooks.evaluation import EvaluationHook, evaluate
from runner.hooks.metrics import MetricsHook
from runner.hooks.nan_loss import NanLossHook
from runner.hooks.progress import ProgressHook
from runner.hooks.stop import StopAtStepHook, StopWhenHook

__all__ = [
    "BestCheckpoint",
    "CheckpointHook",
    "EvaluationHook",
    "MetricsHook",
    "NanLossHook",
    "ProgressHook",
    "StopAtStepHook",
    "StopWhenHook",
    "evaluate",
]
