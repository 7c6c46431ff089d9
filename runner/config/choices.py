"""The choices of configuration keys."""

from __future__ import annotations

from enum import Enum

# Enum members carry the spelling that a user types, because OmegaConf matches members by name.


class Mode(Enum):
    """The action of `python -m runner` on the experiment."""

    # Trains the experiment, after any experiments that it starts from.
    train = "train"
    # Only shows where every variable's value would come from.
    plan = "plan"
    # Evaluates the best checkpoint of the last run on the test split. That is the last finished run
    # of this configuration, or the run in `run_dir`.
    evaluate = "evaluate"
    # Writes what that checkpoint predicts for the test split. `predict` names other features.
    predict = "predict"
    # Exports that checkpoint as a SavedModel.
    export = "export"


class Resume(Enum):
    """The treatment of an unfinished run, interrupted or failed, of the same configuration."""

    # Resumes it if there is one; otherwise starts a new run.
    auto = "auto"
    # Starts a new run.
    never = "never"
    # Resumes it; without one, it is an error.
    must = "must"
    # Continues a run, even a finished one, with other settings. `train.steps`, arguments of the
    # optimizer, clipping, hooks, callbacks and metrics may differ, and nothing else.
    extend = "extend"


class EvaluatedSplit(Enum):
    """The split that `mode=evaluate` evaluates."""

    test = "test"
    validation = "validation"
    # One pass over the training data. If that repeats, its `sizes()` must report how many examples
    # there are.
    train = "train"


class Goal(Enum):
    """The better direction of an objective."""

    maximize = "maximize"
    minimize = "minimize"


class Missing(Enum):
    """The reaction to a tensor that a checkpoint lacks for a variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"


class Collision(Enum):
    """The reaction to several scaffolds that claim one variable."""

    error = "error"
    # The first scaffold gives the value.
    first = "first"
    # The last scaffold gives the value.
    last = "last"


class StateClass(Enum):
    """The kind of state that a variable holds; a warm start selects by it."""

    # The trainable and other variables of the model.
    weights = "weights"
    # Moving means and variances.
    batch_norm = "batch_norm"
    # Moving averages of the weights (EMA).
    moving_averages = "moving_averages"
    # Optimizer state per weight, for example Adam's moments.
    optimizer_slots = "optimizer_slots"
    # The number of steps taken.
    global_step = "global_step"
    # The position of a layer's random numbers, which no warm start takes over.
    random_state = "random_state"

    @property
    def noun(self) -> str:
        """The name for a variable of the class, such as `optimizer slot`."""
        return self.value.replace("_", " ").removesuffix("s")


WARM_STARTED = (StateClass.weights, StateClass.batch_norm)
# Members that a configuration cannot name.
INTERNAL = (StateClass.random_state,)


class ShapePolicy(Enum):
    """The reaction to a tensor with another shape than its variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"
    # Copies the elements in row-major order; the sizes must be equal.
    reshape = "reshape"
    # Copies the part that both have in common, from the start of each axis; the rest keeps its
    # initial value.
    pad_or_slice = "pad_or_slice"


class Expect(Enum):
    """The number of a scaffold's variables that must take their value from its checkpoint."""

    # Every one.
    all = "all"
    # At least one.
    some = "some"
    # None; all of them start from their initializers.
    scratch = "scratch"


class ExportFormat(Enum):
    """The format of an export."""

    # A SavedModel, for servers and MLflow.
    savedmodel = "savedmodel"
    # The Keras model, compiled, with its optimizer: `keras.models.load_model`.
    keras = "keras"
    # Its weights alone: `model.load_weights`.
    weights = "weights"


class Initialize(Enum):
    """The initializers that run before the restoration."""

    # Every one whose value or effects can be observed: what is overwritten unread is not computed.
    all = "all"
    # Only those whose value is not provably overwritten, whatever else computing it does.
    remaining = "remaining"


class Placement(Enum):
    """The distribution of variables over parameter servers."""

    # Each variable to the next server in turn.
    round_robin = "round_robin"
    # Each variable to the server with the fewest bytes so far.
    by_size = "by_size"


class PlanFormat(Enum):
    """The format in which `mode=plan` shows the plan."""

    table = "table"
    json = "json"
    html = "html"


# Keywords cannot be attributes, so the members of these are looked up: NonFinite["raise"].
NonFinite = Enum(
    "NonFinite",
    {
        # Ends training cleanly.
        "stop": "stop",
        # Raises an error.
        "raise": "raise",
        # Restores the last checkpoint and continues with a lower learning rate.
        "rollback": "rollback",
    },
)
OnError = Enum(
    "OnError",
    {
        # Warns and continues; the next save tries again.
        "warn": "warn",
        # Raises an error.
        "raise": "raise",
    },
)
OnTrialError = Enum(
    "OnTrialError",
    {
        # Runs the other trials.
        "continue": "continue",
        # Starts no further trial.
        "stop": "stop",
    },
)


DeviceBatch = Enum(
    "DeviceBatch",
    {
        # The batch of a step, which the devices divide.
        "global": "global",
        # The batch of one device: a step takes as many as there are devices in all tasks.
        "per_device": "per_device",
    },
)


# Stands for the values that training would start from, in place of a run's checkpoint.
SCAFFOLDS = "scaffolds"

# The remedy for a missing checkpoint of a scaffold, besides correcting its path.
OPTIONAL = "set `optional: true` to initialise these variables instead"

# How a configuration names the experiment that a checkpoint comes from, and checkpoints in MLflow.
EXPERIMENT = "experiment:"
MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:")
