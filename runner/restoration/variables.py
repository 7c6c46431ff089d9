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
class VariableSpec:
    """A variable of the model's graph.

    Attributes:
      tensor: its name, shape and dtype.
      state: what kind of state it holds.
      trainable: whether the optimizer updates it.
      frozen: whether it would train if its scaffold did not say `trainable: false`.
      initializer: the operation that gives its value when no source does.
    """

    tensor: TensorSpec
    state: StateClass
    trainable: bool
    initializer: str
    frozen: bool = False

    @property
    def name(self) -> str:
        """The name that patterns, plans and checkpoints use."""
        return self.tensor.name


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
