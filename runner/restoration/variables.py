"""Variables as the planner knows them: specs, classes of state, and what a slot belongs to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import StateChoice

EMA_SUFFIX = "/ExponentialMovingAverage"


class StateClass(Enum):
    """The kind of state that a variable holds; a warm start selects by it."""

    WEIGHT = "weight"
    BATCH_NORM = "batch norm"
    OPTIMIZER_SLOT = "optimizer slot"
    MOVING_AVERAGE = "moving average"
    GLOBAL_STEP = "global step"
    RANDOM_STATE = "random state"


WARM_STARTED = frozenset({StateClass.WEIGHT, StateClass.BATCH_NORM})

# The configuration's choice for each class. Random state is never part of a warm start.
CHOICES: Mapping[StateClass, StateChoice] = {
    StateClass.WEIGHT: StateChoice.weights,
    StateClass.BATCH_NORM: StateChoice.batch_norm,
    StateClass.MOVING_AVERAGE: StateChoice.moving_averages,
    StateClass.OPTIMIZER_SLOT: StateChoice.optimizer_slots,
    StateClass.GLOBAL_STEP: StateChoice.global_step,
}

_BY_NAME = (
    (re.compile(r"(.*/)?global_step"), StateClass.GLOBAL_STEP),
    (re.compile(r"(.*/)?moving_(mean|variance)"), StateClass.BATCH_NORM),
    (re.compile(r"(.*/)?seed_generator_state"), StateClass.RANDOM_STATE),
    (re.compile(r".*/ExponentialMovingAverage(_\d+)?"), StateClass.MOVING_AVERAGE),
)


@dataclass(frozen=True)
class Partition:
    """The part of a partitioned variable that one variable holds; checkpoints hold the whole.

    Attributes:
      name: the whole variable's name.
      shape: the whole variable's shape.
      offset: where the part begins, for each dimension.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True)
class VariableSpec:
    """A variable of the model's graph.

    Attributes:
      tensor: its name, shape and dtype.
      state: the kind of state it holds.
      trainable: whether the optimizer updates it.
      initializer: the operation that gives its value when no source does.
      frozen: whether it would train if its scaffold did not set `trainable: false`.
      partition: which part of a partitioned variable it is; None for a whole variable.
      kept_for: the full names of the variables that an optimizer keeps it for, such as Adam's
        powers; empty for all other variables.
    """

    tensor: TensorSpec
    state: StateClass
    trainable: bool
    initializer: str
    frozen: bool = False
    partition: Partition | None = None
    kept_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in the graph, which the plan shows."""
        return self.tensor.name

    @property
    def full_name(self) -> str:
        """The name that patterns and checkpoints use: that of the whole for a part."""
        return self.partition.name if self.partition else self.name

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape that checkpoints use: that of the whole for a part."""
        return self.partition.shape if self.partition else self.tensor.shape


def classify(name: str, *, model: bool) -> StateClass:
    """Returns the class of state of the variable `name`.

    Args:
      name: the variable's name.
      model: True when the variable belongs to the model, False when it was created while the
        training step was built, as optimizer slots are.
    """
    for pattern, state in _BY_NAME:
        if pattern.fullmatch(name):
            return state
    return StateClass.WEIGHT if model else StateClass.OPTIMIZER_SLOT


@dataclass(frozen=True)
class Owner:
    """The variable that a slot or an average belongs to.

    Attributes:
      name: that variable's name.
      suffix: what follows it in the name of the slot, e.g. `/Adam_1`.
    """

    name: str
    suffix: str


def owners_of(states: Mapping[str, StateClass]) -> dict[str, Owner]:
    """Returns the owner of every slot and average: the longest name of a model variable above it.

    What an optimizer keeps for all variables at once, such as `beta1_power`, has no owner.

    Args:
      states: variable name -> its class of state.
    """
    model = {name for name, state in states.items() if state in WARM_STARTED}
    found: dict[str, Owner] = {}
    for name, state in states.items():
        if state not in (StateClass.OPTIMIZER_SLOT, StateClass.MOVING_AVERAGE):
            continue
        owner = name
        while "/" in owner:
            owner = owner.rpartition("/")[0]
            if owner in model:
                found[name] = Owner(owner, name[len(owner) :])
                break
    return found


class MovingAverages:
    """Finds the moving average of a variable in a checkpoint, however its writer named it."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._keras: dict[str, set[str]] = {}
        for name in names:
            last = name.rpartition("/")[2]
            if last.endswith("_average"):
                # A Keras optimizer joins the variable's whole path, the root model's name first.
                parts = last.removesuffix("_average").split("_")
                for start in range(len(parts)):
                    self._keras.setdefault("_".join(parts[start:]), set()).add(name)

    def find(self, name: str) -> str | None:
        """Returns the name of the average of the weight that the checkpoint calls `name`.

        `NAME/ExponentialMovingAverage` of `tf.train.ExponentialMovingAverage` comes first, then
        `..._average` of a Keras optimizer with `use_ema=True`, if exactly one fits.
        """
        if name + EMA_SUFFIX in self._names:
            return name + EMA_SUFFIX
        found = self._keras.get(re.sub(r"[/.]", "_", name), set())
        return next(iter(found)) if len(found) == 1 else None
