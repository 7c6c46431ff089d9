"""The structured configs: every key that a run understands, its type, default and bounds.

The comment above a key is its meaning, also in `--help` and `docs/reference/configuration.md`,
which `runner.config.reference_page` makes of them. `--help` shows the first sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from runner.config import choices, value_rules
from runner.config.choices import Mode, Resume
from runner.config.keys import ENTRIES, SECTION, TARGET, TargetField
from runner.config.masking import MaskConfig as MaskConfig
from runner.config.scaffold_schema import RestorationConfig as RestorationConfig
from runner.config.scaffold_schema import ScaffoldConfig as ScaffoldConfig
from runner.config.scaffold_schema import VariablesConfig as VariablesConfig
from runner.config.scaffold_schema import VocabularyConfig as VocabularyConfig
from runner.config.training_schema import CheckpointConfig as CheckpointConfig
from runner.config.training_schema import ClipConfig as ClipConfig
from runner.config.training_schema import EvaluateConfig as EvaluateConfig
from runner.config.training_schema import ExportConfig as ExportConfig
from runner.config.training_schema import NonFiniteConfig as NonFiniteConfig
from runner.config.training_schema import PlanConfig as PlanConfig
from runner.config.training_schema import PredictConfig as PredictConfig
from runner.config.training_schema import TrainConfig as TrainConfig
from runner.config.value_rules import at_least

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TASKS = (CHIEF, WORKER, PS, EVALUATOR)
# Keys of `model` that are for the runner and not for its target.
MODEL_SWITCHES = ("jit_compile", "dtype_policy")
_MEASURES = {TARGET: TargetField(by_name=True, measure=True)}


class ClusterMode(Enum):
    """How the tasks of a cluster train one model."""

    # Every task computes with variables that parameter servers hold.
    parameter_servers = "parameter_servers"
    # Every task holds all variables and computes a part of each batch; gradients are summed over
    # all tasks, by TensorFlow's collectives.
    collective = "collective"


@dataclass
class ClusterConfig:
    """Training in several processes. On several machines `TF_CONFIG` names the tasks."""

    # True starts all tasks as processes on this machine.
    local: bool = False
    # How the tasks train one model.
    mode: ClusterMode = ClusterMode.parameter_servers
    # True starts them even on a machine with a public address: TensorFlow's servers listen on all
    # interfaces, without a password.
    exposed: bool = False
    # How many tasks train, the chief included; with `local` only.
    workers: int = field(default=1, metadata=at_least(1, "1 is the chief alone"))
    # How many parameter servers hold the variables; with `local` only, and none in mode
    # `collective`.
    ps: int = field(default=1, metadata=at_least(1))
    # True adds a task that evaluates every checkpoint.
    evaluator: bool = False
    # How variables are spread over the parameter servers.
    placement: choices.Placement = choices.Placement.round_robin
    # How long a task waits for others, in seconds: for servers to respond, for the chief to prepare
    # the model, and for a collective update to complete.
    max_wait_secs: float = field(default=1800.0, metadata=value_rules.WAIT)
    # How often a waiting task checks, in seconds.
    recovery_wait_secs: float = field(default=2.0, metadata=value_rules.WAIT)
    # How long the chief waits for the other tasks at the end, in seconds. A local cluster waits as
    # long for its tasks after a signal, and for the chief at least `session.grace_seconds`.
    grace_secs: float = field(default=30.0, metadata=value_rules.GRACE)
    # How often each failed task is restarted; with `local` only.
    restarts: int = field(default=0, metadata=at_least(0))


@dataclass
class DevicesConfig:
    """Training on several devices of a machine; `devices=2` is short for `devices.count=2`."""

    # A number, `all` GPUs, or a list such as `[0, 2]` or `["gpu:0", "gpu:2"]`. Without a GPU, a
    # number takes as many logical CPU devices, which share the cores.
    count: Any = field(default=1, metadata=value_rules.DEVICES)
    # What a batch of the data is.
    batch: choices.DeviceBatch = choices.DeviceBatch["global"]
    # True gives batch-norm layers the statistics of the whole batch, over all devices and tasks. By
    # default each device uses its own, and the first one's are saved.
    sync_batch_norm: bool = False


@dataclass
class SessionConfig:
    """The TensorFlow session."""

    # Threads within one operation; 0 lets TensorFlow choose.
    intra_op_threads: int = field(default=0, metadata=at_least(0, most=1024))
    # Threads for parallel operations. 0 lets TensorFlow choose, and runs tiny steps in the caller's
    # thread if that is measured to be faster; -1 runs all steps in the caller's thread.
    inter_op_threads: int = field(default=0, metadata=at_least(-1, most=1024))
    # How long the run may take to end after SIGTERM or SIGINT, in seconds. It completes the current
    # step, saves and records it. When the time is up, the process ends at once; its last checkpoint
    # is intact.
    grace_seconds: float = field(default=25.0, metadata=value_rules.GRACE)


@dataclass
class TrackingConfig:
    """Where runs are recorded."""

    # An MLflow tracking URI; null records nothing in MLflow.
    uri: str | None = "sqlite:///mlflow.db"
    # True also writes TensorBoard event files, to `tensorboard` in the run directory.
    tensorboard: bool = False
    # Whether to record the load of the machine in MLflow, as `system/...`. Null does where MLflow
    # can, from version 3.7.
    system_metrics: bool | None = None
    # Whether to draw figures of a run at its end, for MLflow: learning curves, where the weights
    # came from, proofs. The trials of a sweep have none.
    figures: bool = True
    # How long a run waits at its end until everything is delivered, in seconds. A sweep waits this
    # long without progress.
    close_seconds: float = field(default=30.0, metadata=value_rules.GRACE)
    # How long delivery is retried without success after a run has ended, in seconds. The rest is
    # delivered by `runner sync` or when the run resumes.
    patience_seconds: float = field(default=60.0, metadata=value_rules.GRACE)
    mask: MaskConfig = field(default_factory=MaskConfig)


@dataclass
class SweepConfig:
    """Settings of a sweep, `-m`: its failed trials and its results."""

    # What to do after a trial fails.
    on_error: choices.OnTrialError = choices.OnTrialError["continue"]
    # How often to retry a trial that fails or is killed, from its last checkpoint.
    retries: int = field(default=0, metadata=at_least(0))
    # How many GPUs each of several trials that run at once has to itself, by CUDA_VISIBLE_DEVICES.
    # Null: trials share all.
    devices_per_trial: int | None = field(default=None, metadata=at_least(1))
    # Whether to draw figures of the trials for the parent run at the end.
    figures: bool = True
    # Swept keys that only repeat a trial. Trials that differ in no other key form one band of the
    # learning curves.
    bands: list[str] = field(default_factory=lambda: ["seed"])
    # A value of the objective; a table lists the steps that the trials took to reach it. Null
    # writes no table.
    threshold: float | None = None


_METRICS = value_rules.rule(lambda metrics: "", "for example {key}={accuracy: accuracy}")
_CLASS_WEIGHT = value_rules.rule(
    lambda weights: "" if all(map(math.isfinite, weights.values())) else "a weight is not finite",
    "for example {key}={0: 1.0, 1: 3.0}; for several outputs, let the data give (features, labels, "
    "weights), with weights for every output",
)


@dataclass
class RunConfig:
    """The top-level keys of a configuration."""

    # The name of the experiment, also in MLflow.
    name: str = field(default=MISSING, metadata=value_rules.NAME)
    # Seeds Python, NumPy, TensorFlow and, by `${seed}`, the data.
    seed: int = field(default=0, metadata=at_least(0, most=2**32 - 1))
    # What the command does with the experiment.
    mode: Mode = Mode.train
    # What to do with an unfinished run of the same configuration.
    resume: Resume = Resume.auto
    # The directory for the runs of this experiment, or for a single run. Experiments that
    # checkpoints come from have their own directories beside it.
    run_dir: str = field(default="runs/${name}", metadata=value_rules.RUN_DIR)
    # `_target_` of an object with `train()`, `validation()` and `test()`, and its arguments. Each
    # returns a `tf.data.Dataset` of batches (`runner.graph.contracts.Data`).
    data: dict[str, Any] = field(default=MISSING, metadata={TARGET: TargetField()})
    # `_target_` of a Keras model or layer, or of a function that returns one, and its arguments.
    # Two keys are for the runner: `jit_compile: true` compiles model, loss and gradient with XLA,
    # and `dtype_policy: mixed_bfloat16` or `mixed_float16` computes in mixed precision (weights
    # stay float32).
    model: dict[str, Any] = field(default=MISSING, metadata={TARGET: TargetField()})
    # `_target_` of a callable (labels, outputs) -> losses per example or of a `keras.losses` class,
    # a name as in `compile`, or output -> one of these. Null uses the loss of a compiled model.
    loss: Any = field(default=None, metadata={TARGET: TargetField(measure=True)})
    # Output -> weight of its loss; 1 by default.
    loss_weights: dict[str, float] = field(default_factory=dict)
    # Name -> `_target_` of a callable (labels, outputs) -> values per example or of a class of
    # `keras.metrics`, or a name; or output -> name -> one of these, recorded as `OUTPUT_NAME`.
    metrics: dict[str, Any] = field(default_factory=dict, metadata={**_METRICS, **_MEASURES})
    # Like `metrics`, but weighted by the data's sample weights.
    weighted_metrics: dict[str, Any] = field(default_factory=dict, metadata=_MEASURES)
    # Class -> weight of its examples in training; 1 by default.
    class_weight: dict[int, float] = field(default_factory=dict, metadata=_CLASS_WEIGHT)
    # `_target_` of a Keras or `tf.compat.v1.train` optimizer, and its arguments. The default is
    # Adam for a model that has none; a compiled model keeps its own unless one is named here. The
    # `learning_rate` may be a schedule: `_target_` of a `keras.optimizers.schedules` class or a
    # `tf.compat.v1.train.*_decay` function.
    optimizer: dict[str, Any] = field(default=MISSING, metadata={TARGET: TargetField()})
    # Replaces data, model, loss, metrics and optimizer: `_target_` of a `model_fn` of
    # `tf.estimator`, or of a function that returns one.
    model_fn: dict[str, Any] | None = field(
        default=None, metadata={TARGET: TargetField(called=True)}
    )
    # The `params` argument of the `model_fn` and the `input_fns`.
    params: dict[str, Any] = field(default_factory=dict)
    # `train`, `validation`, `test` -> `_target_` of an `input_fn`; `serving` -> `_target_` of a
    # `serving_input_receiver_fn`.
    input_fns: dict[str, Any] = field(
        default_factory=dict, metadata={TARGET: TargetField(by_name=True, called=True)}
    )
    # Replaces data, model and the others too: `_target_` of a function (mode) ->
    # `runner.GraphSpec`, for the modes train, validation, test and export.
    graph: dict[str, Any] | None = field(default=None, metadata={TARGET: TargetField(called=True)})
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # The parts of the model by name, applied in this order. Also a list of mappings, each with a
    # `name`.
    scaffolds: Any = field(default_factory=dict, metadata={ENTRIES: ScaffoldConfig})
    # A reference, `.npz`: what the source of the weights computes. The warm-started model must
    # compute the same, or the run does not start.
    proof: str | None = field(default=None, metadata=value_rules.PROOF)
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    # Name -> `_target_` of a `tf.compat.v1.train.SessionRunHook`, and its arguments. In these,
    # `${graph:NAME}` is a tensor, operation or variable of the graph, and `${run:NAME}` a part of
    # the run.
    hooks: dict[str, Any] = field(
        default_factory=dict, metadata={TARGET: TargetField(by_name=True)}
    )
    # Name -> `_target_` of a `keras.callbacks.Callback`, and its arguments. Callbacks are called as
    # in `keras.Model.fit`, in this order.
    callbacks: dict[str, Any] = field(
        default_factory=dict, metadata={TARGET: TargetField(by_name=True)}
    )
    # The devices that train, as `devices.count`, or the keys below.
    devices: Any = field(default_factory=DevicesConfig, metadata={SECTION: DevicesConfig})
    session: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)


def to_compose() -> RunConfig:
    """Returns the defaults over which OmegaConf merges a configuration.

    It merges neither a list or a number into a mapping nor the reverse, but all of them into null.
    """
    return RunConfig(scaffolds=None, devices=None)
