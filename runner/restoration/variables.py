"""What the planner knows of a variable: its spec, its class of state, its initializer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from runner.checkpoints.reader import TensorSpec


class StateClass(Enum):
    """The kind of state that a variable holds; a warm start selects by it."""

    WEIGHT = "weight"
    BATCH_NORM = "batch norm"
    OPTIMIZER_SLOT = "optimizer slot"
    MOVING_AVERAGE = "moving average"
    GLOBAL_STEP = "global step"
    RANDOM_STATE = "random state"


WARM_STARTED = frozenset({StateClass.WEIGHT, StateClass.BATCH_NORM})

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
      state: what kind of state it holds.
      trainable: whether the optimizer updates it.
      frozen: whether it would train if its scaffold did not say `trainable: false`.
      partition: which part of a partitioned variable it is; None when it is a whole one.
      initializer: the operation that gives its value when no source does.
      kept_for: the full names of the variables that an optimizer keeps it for, such as Adam's
        powers; empty for all else.
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
        """The name that patterns and checkpoints use: the whole's where this is a part."""
        return self.partition.name if self.partition else self.name

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape that checkpoints use: the whole's where this is a part."""
        return self.partition.shape if self.partition else self.tensor.shape


def classify(name: str, *, model: bool) -> StateClass:
    """Returns the class of state of the variable `name`.

    Args:
      name: the variable's name.
      model: True when the variable belongs to the model, False when something created it while
        the training step was built, as optimizers do with their slots.
    """
    for pattern, state in _BY_NAME:
        if pattern.fullmatch(name):
            return state
    return StateClass.WEIGHT if model else StateClass.OPTIMIZER_SLOT
