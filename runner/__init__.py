"""Warm-starts TensorFlow models from several checkpoints, trains, records and resumes them.

`python -m runner` runs a configuration, and `runner.lifecycle` shows the life of such a run. Each
folder is a room with one purpose: its doors are the functions to start reading from, and a seam is
a class that another room extends. Any room may import `errors`, `console` and `internals`;
otherwise it imports only those before it in this order: system, config, inputs, checkpoints, rules,
tracking, runs, planning, restoration, proof, session, graph, hooks, training, estimator, sweeps,
cluster, mapping, api, commands. Sweeps and clusters extend a run by two interfaces of `training`,
`TrialWatch` and `Coordinator`; what a run does differently in a cluster, it reads from its
configuration. `examples` is user code.

From Python: `run`, `fit` and `sweep`, and `open_run` for a run that is there.

For Keras models, modules and variables of eager TensorFlow 2, without a run: `warm_start` and
`plan`, `propose`, `prove`, the callback `WarmStart`, `open_checkpoint` and `checkpoints.diff`.

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
    from runner import checkpoints as checkpoints
    from runner import estimator as estimator
    from runner.api.fit import fit as fit
    from runner.api.result import Result as Result
    from runner.api.result import open_run as open_run
    from runner.api.run import run as run
    from runner.api.sweep import SweepResult as SweepResult
    from runner.api.sweep import sweep as sweep
    from runner.checkpoints.inspection import Checkpoint as Checkpoint
    from runner.checkpoints.inspection import open_checkpoint as open_checkpoint
    from runner.config.schema import RunConfig as RunConfig
    from runner.config.validation import validate as validate
    from runner.errors import RunnerError as RunnerError
    from runner.graph.graph_spec import GraphSpec as GraphSpec
    from runner.graph.input_pipeline import TrainingInput as TrainingInput
    from runner.lifecycle import run_experiment as run_experiment
    from runner.mapping.proposal import Proposal as Proposal
    from runner.mapping.proposal import propose as propose
    from runner.proof.proving import prove as prove
    from runner.restoration.eager import WarmStart as WarmStart
    from runner.restoration.eager import plan as plan
    from runner.restoration.eager import warm_start as warm_start
    from runner.restoration.eager_plan import WarmStartPlan as WarmStartPlan
    from runner.session.cached_session import CachedSession as CachedSession
    from runner.session.monitored_session import ChiefSessionCreator as ChiefSessionCreator
    from runner.session.monitored_session import MonitoredSession as MonitoredSession
    from runner.session.monitored_session import (
        MonitoredTrainingSession as MonitoredTrainingSession,
    )
    from runner.session.monitored_session import (
        SingularMonitoredSession as SingularMonitoredSession,
    )
    from runner.session.monitored_session import Supervisor as Supervisor
    from runner.session.monitored_session import WorkerSessionCreator as WorkerSessionCreator
    from runner.session.session_manager import Scaffold as Scaffold
    from runner.session.session_manager import SessionManager as SessionManager
    from runner.tracking.current_run import CurrentRun as CurrentRun
    from runner.tracking.current_run import current_run as current_run

# Module -> its public names. Imported when they are asked for: configuration errors and --help must
# not wait for TensorFlow. Type checkers read the imports above.
_PUBLIC = {
    "api.fit": ("fit",),
    "api.result": ("Result", "open_run"),
    "api.run": ("run",),
    "api.sweep": ("SweepResult", "sweep"),
    "checkpoints.inspection": ("Checkpoint", "open_checkpoint"),
    "config.schema": ("RunConfig",),
    "config.validation": ("validate",),
    "errors": ("RunnerError",),
    "graph.graph_spec": ("GraphSpec",),
    "graph.input_pipeline": ("TrainingInput",),
    "restoration.eager": ("WarmStart", "plan", "warm_start"),
    "restoration.eager_plan": ("WarmStartPlan",),
    "mapping.proposal": ("Proposal", "propose"),
    "proof.proving": ("prove",),
    "lifecycle": ("run_experiment",),
    "session.cached_session": ("CachedSession",),
    "session.monitored_session": (
        "ChiefSessionCreator",
        "MonitoredSession",
        "MonitoredTrainingSession",
        "SingularMonitoredSession",
        "Supervisor",
        "WorkerSessionCreator",
    ),
    "session.session_manager": ("Scaffold", "SessionManager"),
    "tracking.current_run": ("CurrentRun", "current_run"),
}
_MODULES = {name: f"runner.{module}" for module, names in _PUBLIC.items() for name in names}
_SUBMODULES = ("checkpoints", "estimator")
# The rooms that import TensorFlow, whose libraries print notes while they are loaded.
_ON_TENSORFLOW = ("estimator", "graph", "lifecycle", "mapping", "proof", "restoration", "session")

__all__ = sorted([*_MODULES, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _SUBMODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    module = _MODULES.get(name, f"runner.{name}")
    if module.split(".")[1] in _ON_TENSORFLOW:
        importlib.import_module("runner.system.imports").import_tensorflow()
    imported = importlib.import_module(module)
    return imported if name in _SUBMODULES else getattr(imported, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
