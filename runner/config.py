"""The structured configs: every key that a run understands, its type and its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

# Enum members carry the spelling that a user types, because OmegaConf matches members by name.


class Mode(Enum):
    """What `python -m runner` does with the experiment."""

    train = "train"
    plan = "plan"
    evaluate = "evaluate"
    export = "export"


class Resume(Enum):
    """What to do about an unfinished run, interrupted or failed, of the same configuration."""

    auto = "auto"
    never = "never"
    must = "must"


class Goal(Enum):
    """Whether a larger or a smaller objective is better."""

    maximize = "maximize"
    minimize = "minimize"


class Missing(Enum):
    """What to do when a checkpoint lacks a tensor that a variable asks for."""

    error = "error"
    init = "init"


class Collision(Enum):
    """What to do when two scaffolds claim one variable."""

    error = "error"
    first = "first"
    last = "last"


@dataclass
class TrainConfig:
    """How long to train and how often to do what; every number counts global steps."""

    # The global step at which training ends.
    steps: int = 1000
    # Training metrics are logged every so many steps.
    log_every: int = 50
    # The validation split is evaluated every so many steps, and at the end.
    evaluate_every: int = 250
    # A checkpoint is saved every so many steps, and at the end.
    checkpoint_every: int = 250
    # Whether checkpoints keep the position in the training data, its shuffle buffer included.
    # False starts the data anew where a run is resumed.
    save_input: bool = True
    # How many of the newest checkpoints are kept.
    keep_checkpoints: int = 2
    # The metric that chooses the best checkpoint and is returned to a sweep.
    objective: str = "validation/loss"
    goal: Goal = Goal.minimize


@dataclass
class VariablesConfig:
    """Which variables a scaffold owns: patterns over whole names, globs or `re:` expressions."""

    include: list[str] = MISSING
    exclude: list[str] = field(default_factory=list)


@dataclass
class ScaffoldConfig:
    """One part of the model and where its values come from."""

    # The variables this scaffold owns.
    variables: VariablesConfig = field(default_factory=VariablesConfig)
    # A checkpoint directory, a checkpoint prefix, or `experiment:NAME`; null initialises.
    checkpoint: str | None = None
    # Model name -> checkpoint name: a whole name, a prefix ending in `/`, or `re:` with groups;
    # the first rule that matches wins.
    rename: dict[str, str] = field(default_factory=dict)
    # False leaves the variables out of the optimizer.
    trainable: bool = True
    # True allows the checkpoint to be absent; the variables are then initialised.
    optional: bool = False
    # What to do when the checkpoint lacks a tensor for one of the variables.
    missing: Missing = Missing.error
    # Overrides for the experiment named by `experiment:NAME`, as on the command line.
    overrides: list[str] = field(default_factory=list)


@dataclass
class RestorationConfig:
    """Rules for the warm start as a whole."""

    # What happens to a variable that two scaffolds own.
    collision: Collision = Collision.error


@dataclass
class SessionConfig:
    """The TensorFlow session."""

    # Threads inside one operation; 0 lets TensorFlow choose.
    intra_op_threads: int = 0
    # Threads for operations side by side; 0 takes TensorFlow's number, and the caller's own thread
    # for tiny steps that are measured to be faster there; -1 takes that for all steps.
    inter_op_threads: int = 0


@dataclass
class MaskConfig:
    """What is secret, and recorded as `***` in parameters, tags and artifacts alike."""

    # Globs over whole dotted names of the configuration, in any case.
    names: list[str] = field(
        default_factory=lambda: [
            "*password*",
            "*passwd*",
            "*secret*",
            "*token",
            "*api_key*",
            "*apikey*",
            "*access_key*",
            "*private_key*",
            "*credential*",
        ]
    )
    # Regular expressions over texts; the first group is masked, or all where there is none.
    values: list[str] = field(
        default_factory=lambda: [
            r"://[^\s/@:]*:([^\s/@]+)@",
            r"(?i)(?:password|passwd|secret|token|api_?key|access_key|credential)=([^\s,;&'\"]+)",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf)[_-]\w{16,}",
            r"\bsk-[\w-]{16,}",
        ]
    )


@dataclass
class TrackingConfig:
    """Where runs are recorded."""

    # An MLflow tracking URI; null records nothing in MLflow.
    uri: str | None = "sqlite:///mlflow.db"
    # True also writes event files for TensorBoard, to `tensorboard` in the run directory.
    tensorboard: bool = False
    # True also records the load of the machine in MLflow, as metrics `system/...`.
    system_metrics: bool = False
    # How long the end of a run waits until everything is delivered, in seconds.
    close_seconds: float = 30.0
    # How long delivery goes on without success once the run has ended, in seconds. What is left
    # is delivered by `python -m runner.sync`, or when the run is resumed.
    patience_seconds: float = 60.0
    mask: MaskConfig = field(default_factory=MaskConfig)


@dataclass
class RunConfig:
    """The root of a run's configuration."""

    # The experiment's name, also in MLflow.
    name: str = MISSING
    # Seeds Python, NumPy, TensorFlow and, by `${seed}`, the data.
    seed: int = 0
    mode: Mode = Mode.train
    resume: Resume = Resume.auto
    # The folder that holds this experiment's runs, or one run's own folder. The runs of an
    # experiment that a checkpoint comes from are in a folder of its name beside this one.
    run_dir: str = "runs/${name}"
    # `_target_` of an object with train(), validation() and test() (see runner.experiment.Data).
    data: dict[str, Any] = MISSING
    # `_target_` of a callable (features, training) -> outputs, normally a Keras model.
    model: dict[str, Any] = MISSING
    # `_target_` of a callable (labels, outputs) -> losses per example.
    loss: dict[str, Any] = MISSING
    # name -> `_target_` of a callable (labels, outputs) -> values per example.
    metrics: dict[str, Any] = field(default_factory=dict)
    # `_target_` of a tf.compat.v1.train.Optimizer.
    optimizer: dict[str, Any] = MISSING
    train: TrainConfig = field(default_factory=TrainConfig)
    # name -> ScaffoldConfig in order of application, or a list of such entries with a `name`.
    scaffolds: Any = field(default_factory=dict)
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    # name -> `_target_` of a tf.compat.v1.train.SessionRunHook.
    hooks: dict[str, Any] = field(default_factory=dict)
    session: SessionConfig = field(default_factory=SessionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


def register() -> None:
    """Makes the schema known to Hydra as `runner_config`; calling it again changes nothing."""
    # OmegaConf merges neither a list into a mapping nor the reverse, but either into null.
    ConfigStore.instance().store(name="runner_config", node=RunConfig(scaffolds=None))
