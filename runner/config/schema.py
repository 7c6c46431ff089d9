"""The structured configs: every key that a run understands, its type, default and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from runner.config import choices
from runner.config.choices import (
    Mode,
    NonFinite,
    Resume,
    StateChoice,
    above,
    at_least,
    entries,
)
from runner.config.tracking import MaskConfig as MaskConfig
from runner.config.tracking import TrackingConfig as TrackingConfig

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TASKS = (CHIEF, WORKER, PS, EVALUATOR)
# Keys of `model` that are for the runner and not for its target.
MODEL_SWITCHES = ("jit_compile", "dtype_policy")


@dataclass
class AddressesConfig:
    """The tasks of a cluster by type, each as `host:port`; an evaluator has no address."""

    chief: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    ps: list[str] = field(default_factory=list)


@dataclass
class TaskConfig:
    """Which task of the cluster this process is."""

    # chief, worker, ps or evaluator; null in a process that is not a task.
    type: str | None = None
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
    placement: choices.Placement = choices.Placement.round_robin
    # Larger variables that a model makes by `tf.compat.v1.get_variable` when it is constructed are
    # cut into parts of at most so many bytes; null cuts none. Keras makes its variables whole.
    partition_bytes: int | None = field(default=None, metadata=at_least(1, "null cuts none"))
    # How long a task waits for others: for the servers to answer, for the chief to make the model
    # ready, and for a synchronous update to be complete; in seconds.
    max_wait_secs: float = field(default=1800.0, metadata=choices.WAIT)
    # How often a waiting task checks, in seconds.
    recovery_wait_secs: float = field(default=2.0, metadata=choices.WAIT)
    # How long the chief waits at the end for the others, and a local cluster after a signal for its
    # tasks (for the chief session.grace_seconds at least), in seconds.
    grace_secs: float = field(default=30.0, metadata=choices.GRACE)
    # How often each failed task is restarted; with `local` only.
    restarts: int = field(default=0, metadata=at_least(0))


@dataclass
class NonFiniteConfig:
    """What to do when the loss, or a weight that is to be saved, is NaN or infinite."""

    # Ends training in an orderly way, is an error, or goes back to the last checkpoint.
    action: NonFinite = NonFinite["raise"]
    # How often one process goes back before it is an error.
    rollbacks: int = field(default=3, metadata=at_least(1))
    # Multiplies the learning rate each time.
    learning_rate_scale: float = field(default=0.5, metadata=above(0, most=1))


@dataclass
class ClipConfig:
    """Bounds for the gradients, applied in this order; null is no bound."""

    # For the absolute value of each element.
    value: float | None = field(default=None, metadata=above(0, "null is no bound"))
    # For the Euclidean norm of each variable's gradient.
    norm: float | None = field(default=None, metadata=above(0, "null is no bound"))
    # For the Euclidean norm of all gradients together.
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
    # The metric that chooses the best checkpoint and is returned to a sweep.
    objective: str = "validation/loss"
    goal: choices.Goal = choices.Goal.minimize
    # How many batches make one optimizer update, which is one global step: gradients and metrics
    # are averaged.
    accumulate: int = field(default=1, metadata=at_least(1))
    clip: ClipConfig = field(default_factory=ClipConfig)
    # Decay of a moving average of the trained weights, such as 0.999; null keeps none.
    ema_decay: float | None = field(default=None, metadata=choices.DECAY)
    # Whether these, or those of `optimizer.use_ema`, are evaluated and exported as the weights.
    evaluate_ema: bool = True
    non_finite: NonFiniteConfig = field(default_factory=NonFiniteConfig)


@dataclass
class CheckpointConfig:
    """How the run's own checkpoints are kept."""

    # What a save that fails does, the disk being full for example: warn, and try again at the next,
    # or raise. The last one at the end always raises.
    on_error: choices.OnError = choices.OnError["warn"]


@dataclass
class VariablesConfig:
    """Which variables a scaffold owns: patterns over whole names, globs or `re:` expressions."""

    include: list[str] = MISSING
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
    # A checkpoint's path, directory or prefix, `experiment:NAME`, or an MLflow URI (`runs:/...`,
    # `models:/...`); null initialises.
    checkpoint: str | None = None
    # Which checkpoint of a directory: `latest`, `best`, or a global step; null takes the best of
    # an experiment and the latest of anything else.
    which: str | None = field(default=None, metadata=choices.WHICH)
    # The mean of several checkpoints: `last N`, or a list of steps or paths; null takes one.
    average: Any = field(default=None, metadata=choices.AVERAGE)
    # Model name -> checkpoint name: a whole name, a prefix ending in `/`, or `re:` with groups;
    # the first rule that matches wins. Optimizer slots and averages follow their variable.
    rename: dict[str, str] = field(default_factory=dict, metadata=choices.STRINGS)
    # False leaves the variables out of the optimizer.
    trainable: bool = True
    # The variables do not train before this global step.
    freeze_until_step: int = field(default=0, metadata=at_least(0, "0 trains them from the start"))
    # Multiplies the learning rate of the variables.
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
    # Variable pattern -> the tensor's axes in the variable's order, as numpy.transpose takes them.
    transpose: dict[str, list[int]] = field(default_factory=dict, metadata=choices.AXES)
    # Variable pattern -> vocabularies by which its rows or columns are moved.
    vocabulary: dict[str, VocabularyConfig] = field(default_factory=dict)
    # Variable pattern -> named conversion (see runner.restoration.named_conversions).
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

    format: choices.PlanFormat = choices.PlanFormat.table
    # True shows every variable, also where numbered layers agree.
    full: bool = False


@dataclass
class EvaluateConfig:
    """What `mode=evaluate` evaluates."""

    # `best`, `latest` or a global step of the run; `scaffolds` evaluates what training would start
    # from, without a run: the values of the scaffolds' checkpoints, and initial ones.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # The metrics of `test` are recorded with the run, other splits' are only shown. `train` is
    # one pass over data that ends, or whose `sizes()` reports how many examples there are.
    split: choices.EvaluatedSplit = choices.EvaluatedSplit.test


@dataclass
class ExportConfig:
    """What `mode=export` exports, and does with the model besides writing it."""

    # As `evaluate.which`. The best checkpoint goes to `export` in the run directory, one of another
    # choice to `export-STEP`, and that of the scaffolds to `export-scaffolds` in `run_dir`.
    which: str = field(default="best", metadata=choices.OWN_WHICH)
    # Name under which it is registered in MLflow; null registers nothing.
    register: str | None = field(default=None, metadata=choices.MODEL_NAME)
    # Alias that is moved to the registered version, as in `models:/NAME@ALIAS`; null moves none.
    alias: str | None = field(default=None, metadata=choices.ALIAS)


@dataclass
class SessionConfig:
    """The TensorFlow session."""

    # Threads inside one operation; 0 lets TensorFlow choose.
    intra_op_threads: int = field(default=0, metadata=at_least(0))
    # Threads for operations side by side; 0 takes TensorFlow's number, and the caller's own thread
    # for tiny steps that are measured to be faster there; -1 takes that for all steps.
    inter_op_threads: int = field(default=0, metadata=at_least(-1))
    # How long the run may take to end after SIGTERM or SIGINT, in seconds: the step in flight ends,
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
    # Swept keys that repeat a trial: those that differ in nothing else are one band of the
    # learning curves.
    bands: list[str] = field(default_factory=lambda: ["seed"])
    # A value of the objective: a table lists the steps it took to reach it. Null for none.
    threshold: float | None = None


@dataclass
class RunConfig:
    """The root of a run's configuration."""

    # The experiment's name, also in MLflow.
    name: str = field(default=MISSING, metadata=choices.NAME)
    # Seeds Python, NumPy, TensorFlow and, by `${seed}`, the data.
    seed: int = field(default=0, metadata=at_least(0, most=2**32 - 1))
    mode: Mode = Mode.train
    resume: Resume = Resume.auto
    # The directory of this experiment's runs, or one run's own. Those of an experiment that a
    # checkpoint comes from are in a directory of its name beside this one.
    run_dir: str = "runs/${name}"
    # `_target_` of an object with train(), validation() and test() (runner.graph.experiment.Data).
    data: dict[str, Any] = MISSING
    # `_target_` of a callable (features, training) -> outputs, normally a Keras model. The runner
    # takes two keys for itself: `jit_compile: true` compiles it with loss and gradient by XLA, and
    # `dtype_policy: mixed_bfloat16` or `mixed_float16` computes in 16 bits (weights stay float32).
    model: dict[str, Any] = MISSING
    # `_target_` of a callable (labels, outputs) -> losses per example or of a keras.losses class,
    # a name as in `compile`, or output -> one of these. Null takes a compiled model's own.
    loss: Any = None  # `loss_weights`: output -> factor of its loss, by default 1.
    loss_weights: dict[str, float] = field(default_factory=dict)
    # Name -> `_target_` of a callable (labels, outputs) -> values per example or of a class of
    # keras.metrics, or a name; or output -> name -> one of these, recorded as OUTPUT_NAME.
    metrics: dict[str, Any] = field(default_factory=dict)  # `weighted_`: with sample weights.
    weighted_metrics: dict[str, Any] = field(default_factory=dict)
    class_weight: dict[int, float] = field(default_factory=dict)  # Of training; by default 1.
    # `_target_` of a Keras or tf.compat.v1.train Optimizer. Its `learning_rate` may be a schedule:
    # `_target_` of a keras.optimizers.schedules class or tf.compat.v1.train.*_decay function.
    optimizer: dict[str, Any] = MISSING
    # In place of data, model, loss, metrics, optimizer: `_target_` of a model_fn of tf.estimator,
    # or of what returns one.
    model_fn: dict[str, Any] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    # train, validation, test -> `_target_` of an input_fn; serving -> of its receiver's function.
    input_fns: dict[str, Any] = field(default_factory=dict)
    # Or `_target_` of a function of `mode` (train, validation, test, export) -> runner.GraphSpec.
    graph: dict[str, Any] | None = None
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # name -> ScaffoldConfig in order of application, or a list of such entries with a `name`.
    scaffolds: Any = field(default_factory=dict, metadata=entries(ScaffoldConfig))
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    # name -> `_target_` of a tf.compat.v1.train.SessionRunHook. `${graph:NAME}` among the arguments
    # is a tensor, operation or variable of the graph, `${run:NAME}` a part of the run.
    hooks: dict[str, Any] = field(default_factory=dict)
    session: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
