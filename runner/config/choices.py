"""The choices that configuration keys offer."""

from __future__ import annotations

from enum import Enum

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
    """What to do when several scaffolds claim one variable."""

    error = "error"
    first = "first"
    last = "last"
    # The mean of their tensors, computed in float64.
    mean = "mean"


class StateChoice(Enum):
    """A class of state that a checkpoint may bring."""

    weights = "weights"
    batch_norm = "batch_norm"
    moving_averages = "moving_averages"
    optimizer_slots = "optimizer_slots"
    global_step = "global_step"


class ShapePolicy(Enum):
    """What to do when a tensor has another shape than its variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"
    # The elements in row-major order; the sizes must be equal.
    reshape = "reshape"
    # What both have in common from the origin; the rest keeps its initial value.
    pad_or_slice = "pad_or_slice"


class Expect(Enum):
    """How many of a scaffold's variables must take their value from its checkpoint."""

    all = "all"
    # At least one.
    some = "some"
    # None: all of them start from their initializers.
    scratch = "scratch"


class Initialize(Enum):
    """Which initializers run before the restoration."""

    all = "all"
    # Not those whose value is provably overwritten.
    remaining = "remaining"


class PlanFormat(Enum):
    """How `mode=plan` shows the plan."""

    table = "table"
    json = "json"
    html = "html"


# Ends the training in good order, raises, or goes back to the last checkpoint with a lower learning
# rate. Members are looked up, NonFinite["raise"]: a keyword cannot be an attribute.
NonFinite = Enum("NonFinite", {"stop": "stop", "raise": "raise", "rollback": "rollback"})


# A keyword likewise.
OnError = Enum("OnError", {"warn": "warn", "raise": "raise"})


# Goes on with the other trials, or starts no further one. Members are looked up, as above.
OnTrialError = Enum("OnTrialError", {"continue": "continue", "stop": "stop"})
