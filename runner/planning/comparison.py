"""Compares a model's outputs and layers with a reference of the source of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.console import plural
from runner.errors import Problem

# Largest difference, relative to the largest value of the reference, by the least precise dtype
# that a model computes in. Right small CNNs, LSTMs and transformers in float32 differ from
# PyTorch's by 1e-7 to 5e-7; wrong strides, flatten and positions by 0.02 to 1.
TOLERANCES = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 5e-5, "float64": 1e-9}
# A layer that gets the recorded inputs is compared by a fifth: right layers then agree within 2e-6,
# BERT's with an approximated GELU differ by 1.5e-5.
LOCAL = 0.2
NOT_FINITE = "the model computes NaN or infinity"


@dataclass(frozen=True)
class Comparison:
    """An output or a layer of a model, compared with a reference.

    Attributes:
      module: the name in the reference: an output, or a module of the source.
      layer: the path of the Keras layer; of an output its name, empty for an only output.
      absolute: the largest difference; infinite where shapes differ, or a value is not finite.
      relative: `absolute`, divided by the largest magnitude in the reference.
      agrees: whether `relative` is within the tolerance.
      note: why the values cannot be compared, such as two shapes.
    """

    module: str
    layer: str
    absolute: float
    relative: float
    agrees: bool
    note: str = ""

    def __str__(self) -> str:
        numbers = f"{self.relative:.2g} relative, {self.absolute:.2g} absolute"
        return self.note or numbers

    def document(self) -> dict[str, Any]:
        """Returns the attributes as plain values; null for what is not finite."""
        finite = {"absolute": self.absolute, "relative": self.relative}
        return vars(self) | {
            key: value if math.isfinite(value) else None for key, value in finite.items()
        }


@dataclass(frozen=True)
class Proof:
    """Whether a warm-started model computes a reference; prints as a report.

    Attributes:
      reference: the path of the reference.
      digest: `sha256:<hex>` of the reference.
      scaffold: the scaffold whose part of the model is compared; empty for the whole model.
      dtype: the least precise dtype of the computation and of the reference.
      tolerance: the largest relative difference of an output that agrees; of a layer, which gets
        the recorded inputs, a fifth of it, or all of it where the reference names the tolerance.
      outputs: the outputs, compared.
      layers: the layers that have a module in the reference, in the order of the model.
      modules: how many modules the reference has.
      compared: how many of these were compared with layers.
      findings: differences between the source and the first layer that differs, in words; where
        the proof holds, settings that do not change outputs, such as momentum.
      contradiction: why the checkpoint and the reference do not belong together, if that is why.
      doubtful: the layers that have wrong tensors, and the first one that differs without a cause,
        if it is not near, with those that reach it and that no record shows to be right.
    """

    reference: str
    digest: str
    scaffold: str
    dtype: str
    tolerance: float
    outputs: tuple[Comparison, ...]
    layers: tuple[Comparison, ...]
    modules: int
    compared: int
    findings: tuple[str, ...] = ()
    contradiction: str = ""
    doubtful: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all outputs and all layers agree, of which there is one at least."""
        compared = (*self.outputs, *self.layers)
        return bool(compared) and all(comparison.agrees for comparison in compared)

    @property
    def first_difference(self) -> Comparison | None:
        """The first layer that differs."""
        return next((layer for layer in self.layers if not layer.agrees), None)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return str(self)

    def lines(self) -> list[str]:
        """Returns the report: the verdict, the first layer that differs, the findings."""
        verdict = "agrees" if self.agrees else "differs"
        parts = [f"{_named('output', c.layer or c.module)} {c}" for c in self.outputs]
        parts.append(f"tolerance {self.tolerance:g} ({self.dtype})")
        parts.append(f"{self.compared} of {plural(self.modules, 'module')} compared")
        lines = [f"{_named('proof', self.scaffold)}: {self.reference} {verdict}: "]
        lines[0] += "; ".join(parts)
        if first := self.first_difference:
            lines.append(f"  first layer that differs: {first.layer} ({first.module}): {first}")
        elif not self.agrees:
            lines.append(f"  {self._without_layer()}")
        if self.contradiction:
            what = self.contradiction
            lines.append(f"  the checkpoint and the reference do not belong together: {what}")
        return lines + [f"  {finding}" for finding in self.findings]

    def problem(self) -> Problem:
        """Returns the problem of a proof that fails."""
        key = f"scaffolds.{self.scaffold}.proof" if self.scaffold else "proof"
        state, *cause = self.lines()
        rules = "the rules of this layer" if self.first_difference else "its rules"
        remedy = f"correct the model or {rules}"
        if self.contradiction:
            remedy = (
                "record a reference of this checkpoint's model, or use the checkpoint that it was "
                "recorded from"
            )
        return Problem(
            f"{key} fails: {state.partition(': ')[2]}",
            "; ".join(line.strip() for line in cause),
            remedy,
        )

    def document(self) -> dict[str, Any]:
        """Returns the proof as plain values, as `provenance.json` and the plan's JSON keep it."""
        first = self.first_difference
        return vars(self) | {
            "agrees": self.agrees,
            "outputs": [comparison.document() for comparison in self.outputs],
            "layers": [comparison.document() for comparison in self.layers],
            "first_difference": first and first.document(),
        }

    def _without_layer(self) -> str:
        if not self.modules:
            return "record activations to learn the first layer that differs"
        if not self.layers:
            return "no module of the reference gives its tensors to one layer alone"
        if any("shapes" in output.note for output in self.outputs):
            return "every layer agrees; leave outputs out where the model has another head"
        return "every layer that was compared agrees: the difference is between or after them"


def compare(
    module: str,
    layer: str,
    value: NDArray[Any],
    expected: NDArray[Any],
    tolerance: float,
    *,
    activation: Callable[[NDArray[Any]], Any] | None = None,
    once: bool = True,
) -> Comparison:
    """Compares a value with a reference, under the moves of axes that the shapes allow.

    Channels may be first or last, and the first two axes exchanged; the closest counts.

    Args:
      module: see `Comparison`, as `layer`.
      layer: see `Comparison`.
      value: what the model computes.
      expected: what the source computes.
      tolerance: the largest relative difference that agrees.
      activation: what the layer computes last and the source may compute after the module.
      once: whether a record of one example may be of what is the same in all.
    """
    known = [array for _, array in arranged(expected, value.shape, activation)]
    differences = [difference(value, array) for array in known]
    relative, absolute = min(differences, default=(math.inf, math.inf))
    # Of a source that computes more, only agreement counts.
    is_longer = expected.size > value.size and expected.ndim == value.ndim
    is_longer &= expected.shape[:1] == value.shape[:1]
    is_less = expected.size < value.size and not once
    if not known or ((is_longer or is_less) and relative > tolerance):
        note = f"shapes differ, {[*value.shape]} from {[*expected.shape]} in the source"
        return Comparison(module, layer, math.inf, math.inf, agrees=False, note=note)
    note = "" if math.isfinite(relative) else NOT_FINITE
    return Comparison(module, layer, absolute, relative, relative <= tolerance, note)


@dataclass(frozen=True)
class Arrangement:
    """One of the `arrangements` of a recorded array, and what is computed behind it, if anything.

    Attributes:
      shape: the shape that the array gets.
      number: which of the arrangements it is.
      after: what the layer computes last and the source after the module.
    """

    shape: tuple[int, ...]
    number: int
    after: Callable[[NDArray[Any]], Any] | None

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns an array in this arrangement."""
        moved = arrangements(array, self.shape)[self.number]
        return np.asarray(self.after(moved)) if self.after else moved


def arranged(
    array: NDArray[Any], shape: tuple[int, ...], activation: Callable[[NDArray[Any]], Any] | None
) -> Iterator[tuple[Arrangement, NDArray[Any]]]:
    """Yields the arrangements that give a recorded array a shape, and the array in them."""
    for number, moved in enumerate(arrangements(array, shape)):
        yield Arrangement(shape, number, None), moved
        if activation:
            yield Arrangement(shape, number, activation), np.asarray(activation(moved))


def closest(
    array: NDArray[Any], value: NDArray[Any], activation: Callable[[NDArray[Any]], Any] | None
) -> NDArray[Any]:
    """Returns a recorded array in the arrangement in which it is closest to a value."""
    known = (one for _, one in arranged(array, value.shape, activation))
    return min(known, key=lambda one: difference(value, one))


def arrangements(array: NDArray[Any], shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Returns an array in the orders of its axes, or else the ways, that give it a shape."""
    rank, axes = array.ndim, tuple(range(array.ndim))
    orders = [axes]
    if rank > 2:  # Channels last, channels first, time before examples.
        orders += [(0, *axes[2:], 1), (0, rank - 1, *axes[1:-1]), (1, 0, *axes[2:])]
    if rank == 4:  # Heads before time, and behind it.
        orders.append((0, 2, 1, 3))
    turned = [array.transpose(order) for order in orders]
    if same := [array for array in turned if array.shape == shape]:
        return same
    # Heads of attention, or examples and time in one axis.
    if rank != len(shape) and (_splits(array.shape, shape) or _splits(shape, array.shape)):
        return [array.reshape(shape)]
    # Positions are the same in all examples, which one of the two may have once or not at all.
    if array.shape == shape[1:]:
        return [np.broadcast_to(array, shape)]
    if array.shape[1:] == shape:
        return [array[0]]
    if rank == len(shape) and array.shape[1:] == shape[1:] and 1 in (array.shape[0], shape[0]):
        return [np.broadcast_to(array[:1], shape)]
    # A causal convolution that pads both sides computes more steps, which are cut off behind it.
    longer = [array for array in turned if _is_longer(array.shape, shape)]
    return [array[tuple(slice(size) for size in shape)] for array in longer]


def _is_longer(whole: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape is another one with one longer axis, which is not the examples' axis."""
    if len(whole) != len(shape) or whole[:1] != shape[:1]:
        return False
    return [a > b for a, b in zip(whole, shape, strict=True) if a != b] == [True]


def _splits(whole: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """Whether each axis of a shape is the product of adjacent axes of another one."""
    rest = [size for size in parts if size != 1]
    for size in whole:
        product = 1
        while product < size and rest:
            product *= rest.pop(0)
        if product != size:
            return False
    return not rest


def factor_to(value: NDArray[Any], expected: NDArray[Any]) -> float:
    """Returns the factor, 0 or more, that brings a value closest to what is expected."""
    return max(0.0, float((value * expected).sum() / ((value * value).sum() or 1)))


def difference(value: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Returns the largest difference, relative to the reference's largest value and absolute."""
    exact = expected.astype(np.float64)
    absolute = float(np.abs(value.astype(np.float64) - exact).max(initial=0.0))
    if not math.isfinite(absolute):
        return math.inf, math.inf
    return absolute / (float(np.abs(exact).max(initial=0.0)) or 1.0), absolute


def _named(kind: str, name: str) -> str:
    return f"{kind} {name}" if name else kind
