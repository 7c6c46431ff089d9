"""Keeps codes of quantized weights from variables that hold numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from runner.checkpoints.quantization import (
    REMEDY,
    is_code,
    is_narrow,
    is_plain_float,
    quantization,
)
from runner.checkpoints.reader import CheckpointSpec, TensorSpec, is_read
from runner.config.schema import ScaffoldConfig
from runner.config.spelling import yaml
from runner.errors import PlanError
from runner.restoration.expressions import Expression, Function, Step
from runner.restoration.variables import VariableSpec

# The step that says what a code stands for, and the ones that compute with numbers.
_SCALE = "scale"
_COMPUTING = ("mean", "sum", "pad", "interpolate")


class Codes:
    """The tensors of a checkpoint that a float variable cannot take as they are.

    Integers and floats of 8 bits or less are nearly always codes, whose scales are somewhere else.
    A rule has to say what they stand for: `w | scale(0.01)`. Of integers of more bits it is enough
    that a rule computes with them, and that the scaffold has `cast: true`.
    """

    def __init__(self, key: str, config: ScaffoldConfig, source: CheckpointSpec) -> None:
        self._key, self._config, self._source = key, config, source

    def require_none(
        self, variable: VariableSpec, names: Sequence[str], expression: Expression
    ) -> None:
        """Checks the tensors that a variable takes.

        Raises:
          PlanError: when one holds codes, or the checkpoint holds codes in its place.
        """
        for name in names:
            tensor = self._source.find(name)
            if tensor is not None and not is_read(tensor.dtype):
                raise self._unread(variable, tensor)
        steps = {*_steps(expression)}
        if not is_plain_float(variable.tensor.dtype) or _SCALE in steps:
            return
        for name in names:
            tensor = self._source.find(name)
            stored = tensor.name if tensor else name
            if tensor is not None and not is_code(tensor.dtype):
                continue
            if layout := quantization(stored, self._source.tensors):
                raise self._quantized(variable, stored, layout)
            if tensor is not None and not self._is_computed(tensor.dtype, steps):
                raise self._unscaled(variable, stored, tensor.dtype)

    def _unread(self, variable: VariableSpec, tensor: TensorSpec) -> PlanError:
        new = variable.tensor.dtype
        return PlanError.of(
            f"{self._key}: {variable.full_name} is {new}, but its tensor is {tensor.dtype}",
            f"{tensor.dtype} and {new} do not convert into each other",
            "save a dense tensor of floats in its place, or exclude the variables",
        )

    def _is_computed(self, dtype: str, steps: Collection[str]) -> bool:
        return self._config.cast and not is_narrow(dtype) and not {*_COMPUTING}.isdisjoint(steps)

    def _quantized(self, variable: VariableSpec, name: str, layout: str) -> PlanError:
        return PlanError.of(
            f"{self._key}: {variable.full_name} is {variable.tensor.dtype}, and {name} is "
            f"quantized ({layout})",
            f"{self._source.path} holds codes, and beside them what turns them into numbers",
            f"{REMEDY}, or exclude the variables",
        )

    def _unscaled(self, variable: VariableSpec, name: str, dtype: str) -> PlanError:
        return PlanError.of(
            f"{self._key}: {variable.full_name} is {variable.tensor.dtype}, but its tensor is "
            f"{dtype}",
            "such values are usually codes: no rule says which numbers they stand for",
            "name a checkpoint with plain weights, exclude the variables, or say it by `scale` in "
            "a rule; scale(1) takes them as the numbers",
            (yaml("rules", {variable.full_name: f"{name} | scale(1)"}),),
        )


def _steps(expression: Expression) -> Sequence[str]:
    """Returns the names of the steps and functions of an expression."""
    match expression:
        case Step(name, operand):
            return (name, *_steps(operand))
        case Function(name, operands):
            return (name, *(step for operand in operands for step in _steps(operand)))
    return ()
