"""Keeps from variables what is not a weight: codes of quantized weights, and parts of weights."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

from runner.checkpoints.quantization import (
    REMEDY,
    any_quantization,
    is_code,
    is_narrow,
    is_plain_float,
    quantization,
)
from runner.checkpoints.reader import CheckpointSpec, TensorSpec, is_read
from runner.config.schema import ScaffoldConfig
from runner.config.spelling import yaml
from runner.errors import PlanError, Problem
from runner.planning.variables import VariableSpec
from runner.rules.expressions import Expression, Function, Step

# The step that says what a code stands for, and the ones that compute with numbers.
_SCALE = "scale"
_COMPUTING = ("mean", "sum", "pad", "interpolate")


# The end of a tensor's name, the end of the tensor that makes the weight with it, and how.
_PARTS = (
    ("_orig", "_mask", "pruned"),
    ("_orig", "_u", "spectral norm"),
    ("weight_v", "weight_g", "weight norm"),
    ("weight_g", "weight_v", "weight norm"),
    ("weight.original0", "weight.original1", "weight norm"),
    ("weight.original1", "weight.original0", "weight norm"),
    ("weight.original", "weight.original", "a parametrization"),
)
_MERGE = (
    "say weight_norm(g, v) in a rule for weight norm; for others save the weight itself with "
    "PyTorch: prune.remove, remove_spectral_norm or remove_parametrizations"
)
_CELL = ("recurrent_kernel", "bias")
_BASE, _ADAPTER = ".base_layer.", ".lora_"


class Codes:
    """The tensors of a checkpoint that a variable cannot take as they are.

    Integers and floats of 8 bits or less are nearly always codes, whose scales are somewhere else.
    A rule has to say what they stand for: `w | scale(0.01)`. Of integers of more bits it is enough
    that a rule computes with them, and that the scaffold has `cast: true`.
    """

    def __init__(self, key: str, config: ScaffoldConfig, source: CheckpointSpec) -> None:
        self._key, self._config, self._source = key, config, source

    @functools.cached_property
    def layout(self) -> str | None:
        """The layout of quantized weights that the checkpoint has, for other variables too."""
        tensors = self._source.tensors
        is_keras = self._source.layers and any(is_narrow(spec.dtype) for spec in tensors.values())
        return any_quantization(tensors) or ("Keras's `quantize`" if is_keras else None)

    def require_none(
        self, variable: VariableSpec, names: Sequence[str], expression: Expression
    ) -> None:
        """Checks the tensors that a variable takes.

        Raises:
          PlanError: when one holds codes, or the checkpoint holds codes in its place.
        """
        if self._has_unread:
            self._require_read(variable, names)
        if self._has_parts:
            self._require_whole(variable, names)
        if self._has_cells:
            self._require_known_layout(variable, names)
        if self._has_codes:
            self._require_numbers(variable, names, {*_steps(expression)})

    # Most checkpoints have none of these, and 50,000 variables need not look for them.

    @functools.cached_property
    def _has_unread(self) -> bool:
        return not all(is_read(spec.dtype) for spec in self._source.tensors.values())

    @functools.cached_property
    def _has_parts(self) -> bool:
        ends = tuple(end for end, _, _ in _PARTS)
        return any(name.endswith(ends) for name in self._source.tensors)

    @functools.cached_property
    def _has_cells(self) -> bool:
        names = (*self._source.tensors, *self._source.other_names)
        return any(name.endswith(_CELL[0]) for name in names)

    @functools.cached_property
    def _has_codes(self) -> bool:
        types = {spec.dtype for spec in self._source.tensors.values()}
        return any(map(is_code, types)) or self.layout is not None

    def _require_read(self, variable: VariableSpec, names: Sequence[str]) -> None:
        for name in names:
            tensor = self._source.find(name)
            if tensor is not None and not is_read(tensor.dtype):
                raise self._unread(variable, tensor)

    def _require_numbers(
        self, variable: VariableSpec, names: Sequence[str], steps: Collection[str]
    ) -> None:
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

    def _require_whole(self, variable: VariableSpec, names: Sequence[str]) -> None:
        """Checks that no tensor is one of several that PyTorch makes a weight of."""
        for name in names:
            for end, other, kind in _PARTS:
                stem = name.removesuffix(end)
                partner = stem + other
                if stem == name or (partner in names and partner != name):
                    continue
                if self._source.find(name) and self._source.find(partner):
                    raise PlanError.of(
                        f"{self._key}: {variable.full_name} takes {name}, which is not the weight",
                        f"{self._source.path} keeps the weight in parts ({kind})",
                        _MERGE,
                    )

    def _require_known_layout(self, variable: VariableSpec, names: Sequence[str]) -> None:
        """Checks that no tensor is of a layer of CuDNN, which has another order within kernels."""
        for name in names:
            module, slash, leaf = name.rpartition("/")
            parts = (self._source.find(f"{module}{slash}{part}") for part in _CELL)
            recurrent, bias = parts if leaf in (*_CELL, "kernel") else (None, None)
            if recurrent is None or bias is None or len(recurrent.shape) != 2:
                continue
            if bias.shape == (2 * recurrent.shape[1],):  # Keras's GRU has two rows.
                raise PlanError.of(
                    f"{self._key}: {variable.full_name} takes {name}, which is in CuDNN's layout",
                    f"{self._source.path} has a CuDNNLSTM or CuDNNGRU there: its bias is "
                    f"{list(bias.shape)}",
                    "load the weights into an LSTM or GRU with Keras 2, and save them again",
                )

    def unmerged(self, taken: Collection[str]) -> Iterator[Problem]:
        """Yields a problem for layers whose weights are taken without the adapters beside them."""
        layers = {name.partition(_BASE)[0] for name in taken if _BASE in name}
        left = [
            name
            for name in self._source.tensors
            if name not in taken and name.partition(_ADAPTER)[0] in layers
        ]
        if left and layers:
            yield Problem(
                f"{self._key}: adapters are left out, such as {left[0]}",
                f"{self._source.path} keeps the weights of these layers in parts (peft)",
                "merge them with peft (merge_and_unload), or map them to variables too",
            )

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
