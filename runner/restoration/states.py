"""Classes of state in checkpoints: which variable a slot or an average belongs to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from runner.config.choices import StateChoice
from runner.restoration.variables import StateClass

EMA_SUFFIX = "/ExponentialMovingAverage"

# What each choice in the configuration selects. Random state belongs to no warm start.
CHOICES: Mapping[StateClass, StateChoice] = {
    StateClass.WEIGHT: StateChoice.weights,
    StateClass.BATCH_NORM: StateChoice.batch_norm,
    StateClass.MOVING_AVERAGE: StateChoice.moving_averages,
    StateClass.OPTIMIZER_SLOT: StateChoice.optimizer_slots,
    StateClass.GLOBAL_STEP: StateChoice.global_step,
}
_FOLLOWERS = (StateClass.OPTIMIZER_SLOT, StateClass.MOVING_AVERAGE)
_MODEL = (StateClass.WEIGHT, StateClass.BATCH_NORM)


@dataclass(frozen=True)
class Owner:
    """The variable that a slot or an average belongs to.

    Attributes:
      name: that variable's name.
      suffix: what follows it in the name of the slot, e.g. `/Adam_1`.
    """

    name: str
    suffix: str


def owner_of(name: str, state: StateClass, variables: Collection[str]) -> Owner | None:
    """Returns what the optimizer slot or moving average `name` belongs to.

    None for every other class, and for what the optimizer keeps for all variables at once, such as
    `beta1_power`.

    Args:
      name: the slot's name.
      state: its class.
      variables: the names of the model's variables.
    """
    if state not in _FOLLOWERS:
        return None
    owner = name
    while "/" in owner:
        owner = owner.rpartition("/")[0]
        if owner in variables:
            return Owner(owner, name[len(owner) :])
    return None


def owners_of(states: Mapping[str, StateClass]) -> dict[str, Owner]:
    """Returns name -> owner for every slot and average among the variables."""
    model = {name for name, state in states.items() if state in _MODEL}
    found = {name: owner_of(name, state, model) for name, state in states.items()}
    return {name: owner for name, owner in found.items() if owner is not None}


class MovingAverages:
    """Finds in a checkpoint the moving average of a variable, as two kinds of writers name it."""

    def __init__(self, names: Collection[str]) -> None:
        """Indexes the names of the checkpoint's tensors."""
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

        First `NAME/ExponentialMovingAverage` of `tf.train.ExponentialMovingAverage`, then
        `..._average` of a Keras optimizer with `use_ema=True`, if just one fits.
        """
        if name + EMA_SUFFIX in self._names:
            return name + EMA_SUFFIX
        found = self._keras.get(re.sub(r"[/.]", "_", name), set())
        return next(iter(found)) if len(found) == 1 else None
