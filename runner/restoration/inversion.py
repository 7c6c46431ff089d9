"""Turns the values of variables back into the tensors of the checkpoint that they came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader, is_number
from runner.config.choices import WARM_STARTED
from runner.errors import ConfigError, nearest
from runner.planning.plan import RestorationPlan
from runner.rules.source_tensors import SourceTensor

# Two variables that share a tensor may differ by as much, as rounding to its dtype changes them.
_ROUNDING = 1e-2


@dataclass(frozen=True)
class Inverse:
    """The tensors of a source, with the values of the variables that came from it.

    Attributes:
      tensors: name in the source -> value; without the tensors of the variables in `lost`.
      lost: variable -> why its value has no inverse.
    """

    tensors: Mapping[str, NDArray[Any]]
    lost: Mapping[str, str]

    @property
    def lost_notice(self) -> str:
        """A sentence on the variables that are left out, and why; empty if none is."""
        return "; ".join(f"{name}: {cause}" for name, cause in self.lost.items())


def invert(
    plan: RestorationPlan,
    scaffold: str,
    values: Mapping[str, NDArray[Any]],
    *,
    open_reader: Callable[[], CheckpointReader],
) -> Inverse:
    """Returns the tensors of a scaffold's checkpoint with the values of variables in them.

    Whatever a variable does not hold stays as it is in the source: tensors that none takes, rows
    that a slice leaves out. A tensor whose variables have the values that the plan gives them
    equals its source bit for bit.

    Args:
      plan: a sound plan.
      scaffold: the scaffold.
      values: variable -> value, of any variables of the plan.
      open_reader: returns the reader of the scaffold's checkpoint.

    Raises:
      ConfigError: when the plan restores nothing from the scaffold, or lacks one of the variables.
      CheckpointError: when a tensor cannot be read.
    """
    _require(plan, scaffold, values)
    reader = open_reader()
    spec = reader.spec()
    tensors: dict[str, NDArray[Any]] = dict(
        reader.read([name for name, tensor in spec.tensors.items() if is_number(tensor.dtype)])
    )
    source_tensors = {
        a.variable.name: a.source_tensor
        for a in plan.restored(scaffold)
        if a.variable.state in WARM_STARTED and a.variable.name in values and a.source_tensor
    }
    lost: dict[str, str] = {}
    for name, source_tensor in source_tensors.items():
        try:
            source_tensor.invert(values[name], tensors)
        except ValueError as error:
            lost[name] = str(error)
    for name, source_tensor in source_tensors.items():
        if name not in lost and not _is_in(source_tensor, values[name], tensors):
            lost[name] = f"another variable gives {source_tensor.names[0]} another value"
    gone = {tensor for name in lost for tensor in source_tensors[name].names}
    tensors |= {alias: tensors[name] for alias, name in spec.tied.items() if name in tensors}
    named = {  # In order: safetensors writes the bytes of a transposed array as they lie.
        name: np.asarray(value, order="C")
        for name, value in tensors.items()
        if spec.tied.get(name, name) not in gone
    }
    return Inverse(named, lost)


def _is_in(
    source_tensor: SourceTensor, value: NDArray[Any], tensors: Mapping[str, NDArray[Any]]
) -> bool:
    """Returns whether the tensors give the variable its value, but for rounding."""
    again = source_tensor.convert([tensors[name] for name in source_tensor.names], value)
    if again.dtype.kind in "biu":
        return np.array_equal(again, value)
    ours, theirs = (array.astype(np.float64) for array in (value, again))
    return np.allclose(ours, theirs, rtol=_ROUNDING, atol=_ROUNDING * np.abs(ours).max(initial=0))


def _require(plan: RestorationPlan, scaffold: str, values: Mapping[str, Any]) -> None:
    plan.require_sound()
    restored = [name for name in plan.sources if plan.restored(name)]
    if scaffold not in restored:
        cause = "the values go back under the names of the checkpoint that they came from"
        state = f"nothing is restored from a scaffold {scaffold!r}"
        raise ConfigError.of(state, cause, "name another scaffold", restored)
    names = [assignment.variable.name for assignment in plan.assignments]
    for name in values.keys() - {*names}:
        raise ConfigError.of(
            f"{name} is no variable of the plan",
            "values are named after variables",
            "give plan.invert the model itself, or its values by the names in the plan",
            nearest(name, names),
        )
