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
from runner.config.tracking import MaskConfig as MaskConfig
from runner.config.tracking import TrackingConfig as TrackingConfig

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TASKS = (CHIEF, WORKER, PS, EVALUATOR)
# Keys of `model` that are for the runner and not for its target.
MODEL_SWITCHES = ("jit_compile", "dtype_policy")


@dataclass
class AddressesConfig:
    """The tasks of a cluster by type, each as `host:port`; an evaluator has no address."""

    # The chief, which trains, saves and records: at most one.
    chief: list[str] = field(default_factory=list)
    # The other tasks that train.
    worker: list[str] = field(default_factory=list)
    # The parameter servers, which hold the variables.
    ps: list[str] = field(default_factory=list)


@dataclass
class TaskConfig:
    """Which task of the cluster this process is."""

    # `chief`, `worker`, `ps` or `evaluator`; null in a process that is not a task.
    type: str | None = None
    # Its position among the tasks of its type, from 0.
    index: int = 0


@dataclass
class ClusterConfig:
    """Training by several processes; `TF_CONFIG` may give addresses and task instead."""

    # True starts all tasks as processes on this machine.
    local: bool = False
    # How many tasks train; the chief is one of them. With `local` only: addresses count themselves.
    workers: int = field(default=1, metadata=at_least(1, "1 is the chief alone"))
    # How many parameter servers hold the variables; with `local` only.
    ps: int = field(default=1, metadata=at_least(1))
    # Whether there is also a task that evaluates every checkpoint.
    evaluator: bool = False
    addresses: AddressesConfig = field(default_factory=AddressesConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    # True makes one update of one gradient from each worker; otherwise each updates on its own.
    synchronous: bool = False
    # How many workers a synchronous update does not wait for.
    backup: int = field(default=0, metadata=at_least(0))
    # How variables are spread over the parameter servers.
    placement: choices.Placement = choices.Placement.round_robin
    # Larger variables that a model makes by `tf.compat.v1.get_variable` when it is constructed are
    # cut into parts of at most so many bytes; null cuts none. Keras makes its variables whole.
    partition_bytes: int | None = field(default=None, metadata=at_least(1, "null cuts none"))
    # How long a task waits for others, in seconds: for the servers to answer, for the chief to make
    # the model ready, and for a synchronous update to be complete.
    max_wait_secs: float = field(default=1800.0, metadata=choices.WAIT)
    # How often a waiting task checks, in seconds.
    recovery_wait_secs: float = field(default=2.0, metadata=choices.WAIT)
    # How long the chief waits at the end for the others, in seconds, and a local cluster after a
    # signal for its tasks (for the chief `session.grace_seconds` at least).
    grace_secs: float = field(default=30.0, metadata=choices.GRACE)
    # How often each failed task is restarted; with `local` only.
    restarts: int = field(default=0, metadata=at_least(0))


@dataclass
class NonFiniteConfig:
    """What to do when the loss, or a weight that is to be saved, is NaN or infinite."""

    # What to do then.
    action: NonFinite = NonFinite["raise"]
    # How often one process goes back to the last checkpoint before it is an error.
    rollbacks: int = field(default=3, metadata=at_least(1))
    # Multiplies the learning rate each time training goes back.
    learning_rate_scale: float = field(default=0.5, metadata=above(0, most=1))


@dataclass
class ClipConfig:
    """Bounds for the gradients, applied in this order; null is no bound."""

    # The largest absolute value of an element.
    value: float | None = field(default=None, metadata=above(0, "null is no bound"))
    # The largest Euclidean norm of a variable's gradient.
    norm: float | None = field(default=None, metadata=above(0, "null is no bound"))
    # The largest Euclidean norm of all gradients together.
    global_norm: float | None = field(default=None, metadata=above(0, "null is no bound"))


@dataclass
class TrainConfig:
    """How long to train and how often to do what; numbers count global steps.

    The three `..._every` are a number of steps or a string such as `10 minutes`.
    """

    # The global step at which training ends.
    steps: int = field(default=1000, metadata=at_least(1))
    # How often training metrics are logged.
    log_every: int | str = field(default=50, metadata=choices.SCHEDULE)
    # How often the validation split is evaluated; also at the end.
    evaluate_every: int | str = field(default=250, metadata=choices.SCHEDULE)
    # How often a checkpoint is saved; also at the end.
    checkpoint_every: int | str = field(default=250, metadata=choices.SCHEDULE)
    # Whether checkpoints keep the position in the training data, its shuffle buffer included.
    # False starts the data over when a run is resumed.
    save_input: bool = True
    # How many of the newest checkpoints are kept.
    keep_checkpoints: int = field(default=2, metadata=at_least(1))
    # The metric that chooses the best checkpoint. A sweep gets its best value.
    objective: str = "validation/loss"
    # Whether a smaller or a larger objective is better.
    goal: choices.Goal = choices.Goal.minimize
    # How many batches make one optimizer update. That is one global step: gradients and metrics are
    # averaged.
    accumulate: int = field(default=1, metadata=at_least(1))
    clip: ClipConfig = field(default_factory=ClipConfig)
    # Decay of a moving average of the trained weights, such as 0.999; null keeps none.
    ema_decay: float | None = field(default=None, metadata=choices.DECAY)
    # Whether moving averages are evaluated and exported as the weights. That holds for those of
    # `optimizer.use_ema` too.
    evaluate_ema: bool = True
    non_finite: NonFiniteConfig = field(default_factory=NonFiniteConfig)


@dataclass
class CheckpointConfig:
    """How the run's own checkpoints are kept."""

    # What a save that fails does, the disk being full for example. The last save of a run always
    # raises.
    on_error: choices.OnError = choices.OnError["warn"]


@dataclass
class VariablesConfig:
    """Which variables a scaffold owns: patterns over whole names, globs or `re:` expressions."""

    # The variables it owns, such as `[cnn/*]`; `*` also matches `/`.
    include: list[str] = MISSING
    # Those of them that it does not own, such as `[cnn/*/bias]`.
    exclude: list[str] = field(default_factory=list)


@dataclass
class VocabularyConfig:
    """Two vocabulary files, one token a line, by which rows or columns are moved."""

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
    # The checkpoint to start from; null initialises its variables. It is a path, directory or
    # prefix, `experiment:NAME`, or an MLflow URI (`runs:/...`, `models:/...`).
    checkpoint: str | None = None
    # Which checkpoint of a directory: `latest`, `best`, or a global step. Null takes the best of an
    # experiment and the latest of anything else.
    which: str | None = field(default=None, metadata=choices.WHICH)
    # The mean of several checkpoints: `last N`, or a list of steps or paths; null takes one.
    average: Any = field(default=None, metadata=choices.AVERAGE)
    # Model name -> checkpoint name, such as `{lstm/: encoder/rnn/}`. Each is a whole name, a prefix
    # ending in `/`, or `re:` with groups; the first rule that matches wins. Optimizer slots and
    # averages follow their variable.
    rename: dict[str, str] = field(default_factory=dict, metadata=choices.STRINGS)
    # Whether its variables train; false leaves them out of the optimizer.
    trainable: bool = True
    # Its variables do not train before this global step.
    freeze_until_step: int = field(default=0, metadata=at_least(0, "0 trains them from the start"))
    # Multiplies the learning rate of its variables.
    learning_rate_multiplier: float = field(default=1.0, metadata=choices.SCALE)
    # True allows the checkpoint to be absent; the variables are then initialised.
    optional: bool = False
    # The classes of state that the checkpoint brings.
    state: list[StateChoice] = field(
        default_factory=lambda: [StateChoice.weights, StateChoice.batch_norm],
        metadata=choices.STATE,
    )
    # True restores the checkpoint's moving averages of the weights as the weights.
    use_ema: bool = False
    # What to do when the checkpoint lacks a tensor for one of the variables.
    missing: choices.Missing = choices.Missing.error
    # What to do when a tensor has another shape than its variable, after all conversions.
    shape: choices.ShapePolicy = choices.ShapePolicy.error
    # Variable pattern -> the tensor's axes in the variable's order, as `numpy.transpose` takes
    # them: `[1, 0]` for a dense kernel of PyTorch.
    transpose: dict[str, list[int]] = field(default_factory=dict, metadata=choices.AXES)
    # Variable pattern -> vocabularies by which its rows or columns are moved.
    vocabulary: dict[str, VocabularyConfig] = field(default_factory=dict)
    # Variable pattern -> a named conversion, such as `torch_lstm`.
    convert: dict[str, str] = field(default_factory=dict, metadata=choices.STRINGS)
    # True allows casts that may lose more than a float's precision, e.g. from float to int.
    cast: bool = False
    # True makes NaN and infinity in a restored tensor an error; otherwise they are a warning.
    finite: bool = False
    # Overrides for the experiment named by `experiment:NAME`, as on the command line.
    overrides: list[str] = field(default_factory=list)


@dataclass
class RestorationConfig:
    """Rules for the warm start as a whole."""

    # What happens to a variable that several scaffolds claim.
    collision: choices.Collision = choices.Collision.error
    # Scaffold, or a pattern over variables -> how many of its variables must be restored.
    expect: dict[str, choices.Expect] = field(default_factory=dict)
    # True reads every restored variable back and compares it with its source.
    verify: bool = False
    # Which initializers run before the restoration.
    initialize: choices.Initialize = choices.Initialize.all


@dataclass
class PlanConfig:
    """How `mode=plan` shows the plan."""

    # A table for people, JSON for programs, or a web page; it goes to standard output.
    format: choices.PlanFormat = choices.PlanFormat.table
    # True gives every variable a row: optimizer slots, counters and seeds too.
    full: bool = False


@dataclass
class EvaluateConfig:
    """What `mode=evaluate` evaluates."""

    # The checkpoint of the run: `best`, `latest` or a global step. `scaffolds` evaluates what
    # training would start from, without a run: the values of the scaffolds' checkpoints, and
    # initial ones.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # The split that is evaluated. The metrics of `test` are recorded with the run, those of
    # `validation` only shown.
    split: choices.EvaluatedSplit = choices.EvaluatedSplit.test


@dataclass
class ExportConfig:
    """What `mode=export` exports, and does with the model besides writing it."""

    # The checkpoint, as for `evaluate.which`. The best one goes to `export` in the run directory,
    # another one to `export-STEP`, and that of the scaffolds to `export-scaffolds` in `run_dir`.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # The name under which it is registered in MLflow; null registers nothing.
    register: str | None = field(default=None, metadata=choices.MODEL_NAME)
    # The alias that is moved to the registered version, as in `models:/NAME@ALIAS`; null moves
    # none.
    alias: str | None = field(default=None, metadata=choices.ALIAS)


@dataclass
class SessionConfig:
    """The TensorFlow session."""

    # Threads inside one operation; 0 lets TensorFlow choose.
    intra_op_threads: int = field(default=0, metadata=at_least(0))
    # Threads for operations side by side. 0 takes TensorFlow's number, and the caller's own thread
    # for tiny steps that are measured to be faster there; -1 takes that for all steps.
    inter_op_threads: int = field(default=0, metadata=at_least(-1))
    # How long the run may take to end after SIGTERM or SIGINT, in seconds. The step in flight ends,
    # it is saved and recorded. After that the process ends at once; its last checkpoint is whole.
    grace_seconds: float = 25.0


@dataclass
class SweepConfig:
    """What a sweep, `-m`, does about trials that fail, and what it shows of them."""

    # Whether the other trials continue after one that fails, or no further one is started.
    on_error: choices.OnTrialError = choices.OnTrialError["continue"]
    # How often a trial that fails or is killed is retried, from its last checkpoint.
    retries: int = field(default=0, metadata=at_least(0))
    # Whether figures of the trials are drawn at the end, for the parent run.
    figures: bool = True
    # Swept keys that repeat a trial. Trials that differ in nothing else are one band of the
    # learning curves.
    bands: list[str] = field(default_factory=lambda: ["seed"])
    # A value of the objective: a table lists the steps that each trial took to reach it. Null makes
    # no such table.
    threshold: float | None = None


@dataclass
class RunConfig:
    """The root of a run's configuration."""

    # The experiment's name, also in MLflow.
    name: str = field(default=MISSING, metadata=choices.NAME)
    # Seeds Python, NumPy, TensorFlow and, by `${seed}`, the data.
    seed: int = field(default=0, metadata=at_least(0, most=2**32 - 1))
    # What the command does with the experiment.
    mode: Mode = Mode.train
    # What to do about an unfinished run of the same configuration.
    resume: Resume = Resume.auto
    # The directory of this experiment's runs, or one run's own. Runs of an experiment that a
    # checkpoint comes from are in a directory of its name beside this one.
    run_dir: str = "runs/${name}"
    # `_target_` of an object with `train()`, `validation()` and `test()`, and its arguments. Each
    # returns a `tf.data.Dataset` of batches (`runner.graph.experiment.Data`).
    data: dict[str, Any] = MISSING
    # `_target_` of a Keras model, or another callable (features, training) -> outputs, and its
    # arguments. The runner takes two keys for itself: `jit_compile: true` compiles it with loss and
    # gradient by XLA, and `dtype_policy: mixed_bfloat16` or `mixed_float16` computes in 16 bits
    # (weights stay float32).
    model: dict[str, Any] = MISSING
    # `_target_` of a callable (labels, outputs) -> losses per example or of a `keras.losses` class,
    # a name as in `compile`, or output -> one of these. Null takes a compiled model's own.
    loss: Any = None
    # Output -> factor of its loss; 1 by default.
    loss_weights: dict[str, float] = field(default_factory=dict)
    # Name -> `_target_` of a callable (labels, outputs) -> values per example or of a class of
    # `keras.metrics`, or a name; or output -> name -> one of these, recorded as `OUTPUT_NAME`.
    metrics: dict[str, Any] = field(default_factory=dict)
    # Like `metrics`, with the sample weights that the data yields.
    weighted_metrics: dict[str, Any] = field(default_factory=dict)
    # Class -> weight of its examples in training; 1 by default.
    class_weight: dict[int, float] = field(default_factory=dict)
    # `_target_` of a Keras or `tf.compat.v1.train` optimizer, and its arguments. The file
    # `optimizer=adam` is chosen by default; `optimizer=compiled` takes a compiled model's own. The
    # `learning_rate` may be a schedule: `_target_` of a `keras.optimizers.schedules` class or a
    # `tf.compat.v1.train.*_decay` function.
    optimizer: dict[str, Any] = MISSING
    # In place of data, model, loss, metrics and optimizer: `_target_` of a `model_fn` of
    # `tf.estimator`, or of what returns one.
    model_fn: dict[str, Any] | None = None
    # The `params` that the `model_fn` and the `input_fns` are called with.
    params: dict[str, Any] = field(default_factory=dict)
    # `train`, `validation`, `test` -> `_target_` of an `input_fn`; `serving` -> of the function
    # that makes its receiver.
    input_fns: dict[str, Any] = field(default_factory=dict)
    # In place of all of these: `_target_` of a function of `mode` (train, validation, test, export)
    # -> `runner.GraphSpec`.
    graph: dict[str, Any] | None = None
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # The parts of the model by name, in order of application, or a list of them with a `name` each.
    scaffolds: Any = field(default_factory=dict, metadata=entries(ScaffoldConfig))
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    # Name -> `_target_` of a `tf.compat.v1.train.SessionRunHook`, and its arguments. Among them,
    # `${graph:NAME}` is a tensor, operation or variable of the graph, `${run:NAME}` a part of the
    # run.
    hooks: dict[str, Any] = field(default_factory=dict)
    session: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
