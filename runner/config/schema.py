"""The structured configs: every key that a run understands, its type, default and bounds.

The comment above a key is its meaning, also in `--help` and `docs/reference/configuration.md`,
which `runner.config.reference` makes of them. `--help` shows the first sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from runner.config import choices
from runner.config.choices import Mode, NonFinite, Resume, StateChoice, above, at_least
from runner.config.keys import entries
from runner.config.masking import MaskConfig as MaskConfig

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TASKS = (CHIEF, WORKER, PS, EVALUATOR)
# Keys of `model` that are for the runner and not for its target.
MODEL_SWITCHES = ("jit_compile", "dtype_policy")


@dataclass
class AddressesConfig:
    """The tasks of a cluster by type, each as `host:port`; an evaluator has no address."""

    # The chief, which trains, saves and records; at most one.
    chief: list[str] = field(default_factory=list)
    # The other tasks that train.
    worker: list[str] = field(default_factory=list)
    # The parameter servers, which hold the variables.
    ps: list[str] = field(default_factory=list)


@dataclass
class TaskConfig:
    """The task of the cluster that this process is."""

    # `chief`, `worker`, `ps` or `evaluator`; null if this process is not a task.
    type: str | None = None
    # Its position among the tasks of its type, from 0.
    index: int = 0


@dataclass
class ClusterConfig:
    """Training in several processes; `TF_CONFIG` can set the addresses and task instead."""

    # True starts all tasks as processes on this machine.
    local: bool = False
    # True starts them even on a machine with a public address: TensorFlow's servers listen on all
    # interfaces, without a password.
    exposed: bool = False
    # How many tasks train, the chief included; with `local` only.
    workers: int = field(default=1, metadata=at_least(1, "1 is the chief alone"))
    # How many parameter servers hold the variables; with `local` only.
    ps: int = field(default=1, metadata=at_least(1))
    # True adds a task that evaluates every checkpoint.
    evaluator: bool = False
    addresses: AddressesConfig = field(default_factory=AddressesConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    # True averages one gradient from each worker into one update; false lets each worker update
    # independently.
    synchronous: bool = False
    # How many workers a synchronous update does not wait for.
    backup: int = field(default=0, metadata=at_least(0))
    # How variables are spread over the parameter servers.
    placement: choices.Placement = choices.Placement.round_robin
    # Partitions larger variables into parts of at most this many bytes; null partitions none.
    # Applies to variables that a model creates with `tf.compat.v1.get_variable` when it is
    # constructed, not to those of Keras.
    partition_bytes: int | None = field(default=None, metadata=at_least(1, "null partitions none"))
    # How long a task waits for others, in seconds: for servers to respond, for the chief to prepare
    # the model, and for a synchronous update to complete.
    max_wait_secs: float = field(default=1800.0, metadata=choices.WAIT)
    # How often a waiting task checks, in seconds.
    recovery_wait_secs: float = field(default=2.0, metadata=choices.WAIT)
    # How long the chief waits for the other tasks at the end, in seconds. A local cluster waits as
    # long for its tasks after a signal, and for the chief at least `session.grace_seconds`.
    grace_secs: float = field(default=30.0, metadata=choices.GRACE)
    # How often each failed task is restarted; with `local` only.
    restarts: int = field(default=0, metadata=at_least(0))


@dataclass
class NonFiniteConfig:
    """The reaction to a loss, or a weight about to be saved, that is NaN or infinite."""

    # What to do then.
    action: NonFinite = NonFinite["raise"]
    # How many rollbacks a run makes, its resumptions included, before it raises an error.
    rollbacks: int = field(default=3, metadata=at_least(1))
    # Factor for the learning rate at each rollback.
    learning_rate_scale: float = field(default=0.5, metadata=above(0, most=1))


@dataclass
class ClipConfig:
    """Gradient clipping, applied in this order; null does not clip."""

    # Maximum absolute value of a gradient element.
    value: float | None = field(default=None, metadata=above(0, "null does not clip"))
    # Maximum L2 norm of a variable's gradient.
    norm: float | None = field(default=None, metadata=above(0, "null does not clip"))
    # Maximum L2 norm of all gradients together.
    global_norm: float | None = field(default=None, metadata=above(0, "null does not clip"))


@dataclass
class TrainConfig:
    """The length of the training, and how often it logs, evaluates and saves.

    Numbers count global steps. The three `..._every` also accept strings such as `10 minutes`.
    """

    # The global step at which training ends.
    steps: int = field(default=1000, metadata=at_least(1))
    # How often training metrics are logged.
    log_every: int | str = field(default=50, metadata=choices.SCHEDULE)
    # How often the validation split is evaluated; also at the end.
    evaluate_every: int | str = field(default=250, metadata=choices.SCHEDULE)
    # How often a checkpoint is saved; also at the end.
    checkpoint_every: int | str = field(default=250, metadata=choices.SCHEDULE)
    # Whether checkpoints hold the position in the training data and its shuffle buffer. False
    # restarts the data when a run resumes.
    save_input: bool = True
    # How many of the newest checkpoints to keep.
    keep_checkpoints: int = field(default=2, metadata=at_least(1))
    # The metric that selects the best checkpoint. A sweep uses its best value.
    objective: str = "validation/loss"
    # Whether a smaller or a larger objective is better.
    goal: choices.Goal = choices.Goal.minimize
    # How many batches to accumulate for one optimizer update. The update is one global step;
    # gradients and metrics are averaged.
    accumulate: int = field(default=1, metadata=at_least(1))
    clip: ClipConfig = field(default_factory=ClipConfig)
    # Decay of moving averages of the trained weights, for example 0.999; null keeps none.
    ema_decay: float | None = field(default=None, metadata=choices.DECAY)
    # Whether moving averages, including those of `optimizer.use_ema`, are evaluated and exported as
    # the weights.
    evaluate_ema: bool = True
    non_finite: NonFiniteConfig = field(default_factory=NonFiniteConfig)


@dataclass
class CheckpointConfig:
    """Settings of the run's own checkpoints."""

    # What to do when a save fails, for example because the disk is full. If the last save of a run
    # fails, that is always an error.
    on_error: choices.OnError = choices.OnError["warn"]


@dataclass
class VariablesConfig:
    """The variables of a scaffold, as globs or `re:` expressions that match whole names."""

    # The variables it owns, for example `[cnn/*]`; `*` also matches `/`.
    include: list[str] = MISSING
    # Exceptions from `include`, for example `[cnn/*/bias]`.
    exclude: list[str] = field(default_factory=list)


@dataclass
class VocabularyConfig:
    """Two vocabulary files, one token per line, that define how rows or columns move."""

    # The vocabulary that the checkpoint was trained with.
    old: str = MISSING
    # The vocabulary of this model.
    new: str = MISSING
    # The axis that counts tokens: 0 in an embedding, usually the last in an output layer.
    axis: int = 0


@dataclass
class ScaffoldConfig:
    """One part of the model and where its values come from."""

    # The variables this scaffold owns.
    variables: VariablesConfig = field(default_factory=VariablesConfig)
    # The checkpoint to start from; null initialises the variables instead. A file, directory or
    # prefix, `experiment:NAME`, or an MLflow URI (`runs:/...`, `models:/...`).
    checkpoint: str | None = field(default=None, metadata=choices.CHECKPOINT)
    # Which checkpoint of a directory: `latest`, `best`, or a global step. Null uses the best of an
    # experiment and the latest of any other source.
    which: str | None = field(default=None, metadata=choices.WHICH)
    # Averages several checkpoints: `last N`, or a list of steps or paths; null uses one.
    average: Any = field(default=None, metadata=choices.AVERAGE)
    # Name in the model -> name in the checkpoint, for example `{lstm/: encoder/rnn/}`. Each rule is
    # a whole name, a prefix ending in `/`, or `re:` with groups; the first rule that matches wins.
    # Optimizer slots and averages are renamed along with their variable.
    rename: dict[str, str] = field(default_factory=dict, metadata=choices.STRINGS)
    # False freezes its variables: they are left out of the optimizer.
    trainable: bool = True
    # Freezes its variables until this global step.
    freeze_until_step: int = field(default=0, metadata=at_least(0, "0 trains them from the start"))
    # Factor for the learning rate of its variables.
    learning_rate_multiplier: float = field(default=1.0, metadata=choices.SCALE)
    # True allows the checkpoint to be missing; the variables are then initialised.
    optional: bool = False
    # Which classes of state to restore from the checkpoint.
    state: list[StateChoice] = field(
        default_factory=lambda: [StateChoice.weights, StateChoice.batch_norm],
        metadata=choices.STATE,
    )
    # True restores the weights from the checkpoint's moving averages.
    use_ema: bool = False
    # What to do when the checkpoint lacks a tensor for one of the variables.
    missing: choices.Missing = choices.Missing.error
    # What to do when, after all conversions, a tensor and its variable differ in shape.
    shape: choices.ShapePolicy = choices.ShapePolicy.error
    # Variable pattern -> the tensor's axes in the variable's order, as `numpy.transpose` takes
    # them: `[1, 0]` for a dense kernel of PyTorch.
    transpose: dict[str, list[int]] = field(default_factory=dict, metadata=choices.AXES)
    # Variable pattern -> vocabularies that define how its rows or columns move.
    vocabulary: dict[str, VocabularyConfig] = field(default_factory=dict)
    # Variable pattern -> a named conversion, for example `torch_lstm`.
    convert: dict[str, str] = field(default_factory=dict, metadata=choices.STRINGS)
    # True allows casts that may lose more than a float's precision, for example from float to int.
    cast: bool = False
    # True makes NaN or infinity in a restored tensor an error instead of a warning.
    finite: bool = False
    # Overrides for the experiment in `experiment:NAME`, as on its command line.
    overrides: list[str] = field(default_factory=list)


@dataclass
class RestorationConfig:
    """Rules for the warm start as a whole."""

    # What to do when several scaffolds claim one variable.
    collision: choices.Collision = choices.Collision.error
    # Scaffold or variable pattern -> how many of its variables must be restored.
    expect: dict[str, choices.Expect] = field(default_factory=dict)
    # True reads every restored variable back and compares it with its source.
    verify: bool = False
    # Which initializers to run before restoring.
    initialize: choices.Initialize = choices.Initialize.all


@dataclass
class PlanConfig:
    """Settings of `mode=plan`."""

    # A table for people, JSON for programs, or a web page, written to standard output.
    format: choices.PlanFormat = choices.PlanFormat.table
    # True gives every variable a row, including optimizer slots, counters and seeds.
    full: bool = False


@dataclass
class EvaluateConfig:
    """Settings of `mode=evaluate`."""

    # The checkpoint of the run: `best`, `latest` or a global step. `scaffolds` needs no run: it
    # evaluates the values that training would start from, from the scaffolds' checkpoints and
    # initializers.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # The split to evaluate. Metrics of `test` are recorded with the run; metrics of the other
    # splits are only shown.
    split: choices.EvaluatedSplit = choices.EvaluatedSplit.test


@dataclass
class ExportConfig:
    """Settings of `mode=export`."""

    # The checkpoint, as in `evaluate.which`. The best one is exported to `export` in the run
    # directory, others to `export-STEP`, and `scaffolds` to `export-scaffolds` in `run_dir`.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # Registers the model in MLflow under this name; null does not register it.
    register: str | None = field(default=None, metadata=choices.MODEL_NAME)
    # Moves this alias to the registered version, as in `models:/NAME@ALIAS`; null moves none.
    alias: str | None = field(default=None, metadata=choices.ALIAS)


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
    grace_seconds: float = field(default=25.0, metadata=choices.GRACE)


@dataclass
class TrackingConfig:
    """Where runs are recorded."""

    # An MLflow tracking URI; null records nothing in MLflow.
    uri: str | None = "sqlite:///mlflow.db"
    # True also writes TensorBoard event files, to `tensorboard` in the run directory.
    tensorboard: bool = False
    # True also records system metrics in MLflow, as `system/...`.
    system_metrics: bool = False
    # How long a run waits at its end until everything is delivered, in seconds. A sweep waits this
    # long without progress.
    close_seconds: float = field(default=30.0, metadata=choices.GRACE)
    # How long delivery is retried without success after a run has ended, in seconds. The rest is
    # delivered by `python -m runner.sync` or when the run resumes.
    patience_seconds: float = field(default=60.0, metadata=choices.GRACE)
    mask: MaskConfig = field(default_factory=MaskConfig)


@dataclass
class SweepConfig:
    """Settings of a sweep, `-m`: its failed trials and its results."""

    # What to do after a trial fails.
    on_error: choices.OnTrialError = choices.OnTrialError["continue"]
    # How often to retry a trial that fails or is killed, from its last checkpoint.
    retries: int = field(default=0, metadata=at_least(0))
    # Whether to draw figures of the trials for the parent run at the end.
    figures: bool = True
    # Swept keys that only repeat a trial. Trials that differ in no other key form one band of the
    # learning curves.
    bands: list[str] = field(default_factory=lambda: ["seed"])
    # A value of the objective; a table lists the steps that the trials took to reach it. Null
    # writes no table.
    threshold: float | None = None


@dataclass
class RunConfig:
    """The top-level keys of a configuration."""

    # The name of the experiment, also in MLflow.
    name: str = field(default=MISSING, metadata=choices.NAME)
    # Seeds Python, NumPy, TensorFlow and, by `${seed}`, the data.
    seed: int = field(default=0, metadata=at_least(0, most=2**32 - 1))
    # What the command does with the experiment.
    mode: Mode = Mode.train
    # What to do with an unfinished run of the same configuration.
    resume: Resume = Resume.auto
    # The directory for the runs of this experiment, or for a single run. Experiments that
    # checkpoints come from have their own directories beside it.
    run_dir: str = field(default="runs/${name}", metadata=choices.RUN_DIR)
    # `_target_` of an object with `train()`, `validation()` and `test()`, and its arguments. Each
    # returns a `tf.data.Dataset` of batches (`runner.graph.experiment.Data`).
    data: dict[str, Any] = MISSING
    # `_target_` of a Keras model, or another callable (features, training) -> outputs, and its
    # arguments. Two keys are for the runner: `jit_compile: true` compiles model, loss and gradient
    # with XLA, and `dtype_policy: mixed_bfloat16` or `mixed_float16` computes in mixed precision
    # (weights stay float32).
    model: dict[str, Any] = MISSING
    # `_target_` of a callable (labels, outputs) -> losses per example or of a `keras.losses` class,
    # a name as in `compile`, or output -> one of these. Null uses the loss of a compiled model.
    loss: Any = None
    # Output -> weight of its loss; 1 by default.
    loss_weights: dict[str, float] = field(default_factory=dict)
    # Name -> `_target_` of a callable (labels, outputs) -> values per example or of a class of
    # `keras.metrics`, or a name; or output -> name -> one of these, recorded as `OUTPUT_NAME`.
    metrics: dict[str, Any] = field(default_factory=dict)
    # Like `metrics`, but weighted by the data's sample weights.
    weighted_metrics: dict[str, Any] = field(default_factory=dict)
    # Class -> weight of its examples in training; 1 by default.
    class_weight: dict[int, float] = field(default_factory=dict)
    # `_target_` of a Keras or `tf.compat.v1.train` optimizer, and its arguments. The default is
    # `optimizer=adam`; `optimizer=compiled` uses the optimizer of a compiled model. The
    # `learning_rate` may be a schedule: `_target_` of a `keras.optimizers.schedules` class or a
    # `tf.compat.v1.train.*_decay` function.
    optimizer: dict[str, Any] = MISSING
    # Replaces data, model, loss, metrics and optimizer: `_target_` of a `model_fn` of
    # `tf.estimator`, or of a function that returns one.
    model_fn: dict[str, Any] | None = None
    # The `params` argument of the `model_fn` and the `input_fns`.
    params: dict[str, Any] = field(default_factory=dict)
    # `train`, `validation`, `test` -> `_target_` of an `input_fn`; `serving` -> `_target_` of a
    # `serving_input_receiver_fn`.
    input_fns: dict[str, Any] = field(default_factory=dict)
    # Replaces data, model and the others too: `_target_` of a function (mode) ->
    # `runner.GraphSpec`, for the modes train, validation, test and export.
    graph: dict[str, Any] | None = None
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # The parts of the model by name, applied in this order. Also a list of mappings, each with a
    # `name`.
    scaffolds: Any = field(default_factory=dict, metadata=entries(ScaffoldConfig))
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    # Name -> `_target_` of a `tf.compat.v1.train.SessionRunHook`, and its arguments. In these,
    # `${graph:NAME}` is a tensor, operation or variable of the graph, and `${run:NAME}` a part of
    # the run.
    hooks: dict[str, Any] = field(default_factory=dict)
    session: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
