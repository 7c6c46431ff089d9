"""Warm-starts TensorFlow models from several checkpoints, trains, records and resumes them.

`python -m runner` runs a configuration, and `runner.run` shows the life of such a run; further
commands are `runner.inspect`, `runner.lineage` and `runner.sync`. Each folder is a room with one
purpose: its doors are the functions to start reading from, and a seam is a class that another room
extends. Any room may import `errors`, `console` and `internals`; otherwise it imports only those
before it in this order: system, config, inputs, checkpoints, tracking, runs, restoration, graph,
session, hooks, training, estimator, sweeps, cluster. A run knows neither sweeps nor clusters, which
extend it; `examples` is user code.

For Keras models, modules and variables of eager TensorFlow 2, without a run: `warm_start` and
`plan`, the callback `WarmStart`, `open_checkpoint` and `checkpoints.diff`.

Sessions without a configuration:

import tensorflow.compat.v1 as tf, runner

with tf.Graph().as_default():
    cnn, head = tf.get_variable("cnn", [3]), tf.get_variable("head", [3])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_sum((cnn * head - 1) ** 2), tf.train.get_or_create_global_step())
    pretrained = runner.Scaffold(saver=tf.train.Saver({"features/cnn": cnn}))
    with runner.MonitoredTrainingSession(
            hooks=[tf.train.StopAtStepHook(100)], model_checkpoint_dir="model",
            pretrained_scaffolds=[pretrained],
            pretrained_checkpoint_dirs=["features"]) as session:
        while not session.should_stop():
            session.run(train_op)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner import checkpoints, estimator
    from runner.checkpoints.inspection import Checkpoint, open_checkpoint
    from runner.config.schema import RunConfig
    from runner.config.validation import validate
    from runner.errors import RunnerError
    from runner.graph.graph_spec import GraphSpec
    from runner.graph.input_pipeline import TrainingInput
    from runner.restoration.eager import WarmStart, WarmStartPlan, plan, warm_start
    from runner.run import run_experiment
    from runner.session.cached_session import CachedSession
    from runner.session.monitored_session import (
        ChiefSessionCreator,
        MonitoredSession,
        MonitoredTrainingSession,
        SingularMonitoredSession,
        Supervisor,
        WorkerSessionCreator,
    )
    from runner.session.session_manager import Scaffold, SessionManager

__all__ = [
    "CachedSession",
    "Checkpoint",
    "ChiefSessionCreator",
    "GraphSpec",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "RunConfig",
    "RunnerError",
    "Scaffold",
    "SessionManager",
    "SingularMonitoredSession",
    "Supervisor",
    "TrainingInput",
    "WarmStart",
    "WarmStartPlan",
    "WorkerSessionCreator",
    "checkpoints",
    "estimator",
    "open_checkpoint",
    "plan",
    "run_experiment",
    "validate",
    "warm_start",
]

# Imported when they are asked for: configuration errors and --help must not wait for TensorFlow.
_MODULES = {
    "CachedSession": "runner.session.cached_session",
    "Checkpoint": "runner.checkpoints.inspection",
    "ChiefSessionCreator": "runner.session.monitored_session",
    "GraphSpec": "runner.graph.graph_spec",
    "MonitoredSession": "runner.session.monitored_session",
    "MonitoredTrainingSession": "runner.session.monitored_session",
    "RunConfig": "runner.config.schema",
    "RunnerError": "runner.errors",
    "Scaffold": "runner.session.session_manager",
    "SessionManager": "runner.session.session_manager",
    "SingularMonitoredSession": "runner.session.monitored_session",
    "Supervisor": "runner.session.monitored_session",
    "TrainingInput": "runner.graph.input_pipeline",
    "WarmStart": "runner.restoration.eager",
    "WarmStartPlan": "runner.restoration.eager",
    "WorkerSessionCreator": "runner.session.monitored_session",
    "open_checkpoint": "runner.checkpoints.inspection",
    "plan": "runner.restoration.eager",
    "run_experiment": "runner.run",
    "validate": "runner.config.validation",
    "warm_start": "runner.restoration.eager",
}


def __getattr__(name: str) -> Any:
    if name in ("checkpoints", "estimator"):  # Modules, with no import of their own.
        return importlib.import_module(f"runner.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
