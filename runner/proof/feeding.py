"""Gives a Keras model the inputs of a reference, and finds its outputs in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import CheckpointError, Problem
from runner.internals.keras import flatten_with_path
from runner.proof.reference import Reference

# Variables or outputs, with other values for them.
Values = Sequence[tuple[Any, NDArray[Any]]]


def model_inputs(model: Any, reference: Reference) -> Any:
    """Returns the inputs of a reference in the structure, layout and dtypes that a model takes.

    Raises:
      CheckpointError: when the names or shapes are not the model's.
    """
    structure = _input_structure(model)
    if structure is None:  # A subclass of Model does not say.
        arrays = {name: _arranged(name, None, reference) for name in reference.inputs}
        if [*arrays] == [""]:
            return arrays[""]
        return [*arrays.values()] if all(map(str.isdecimal, arrays)) else arrays
    specs = by_name(structure)
    names = [spec.name for spec in keras.tree.flatten(structure)]
    recorded = recorded_names("inputs", reference, specs, names)
    if missing := [f"inputs/{name}".rstrip("/") for name in specs if name not in recorded]:
        state = f"{reference.path} lacks {', '.join(missing)}"
        raise CheckpointError.of(state, "the model takes it", "record every input")
    arranged = [_arranged(recorded[name], spec, reference) for name, spec in specs.items()]
    return keras.tree.pack_sequence_as(structure, arranged)


def _input_structure(model: Any) -> Any:
    """Returns the model's symbolic inputs as it takes them; None where it has none."""
    for name in ("input", "inputs"):
        try:
            structure = getattr(model, name)
        except (AttributeError, ValueError):  # A layer may not have been called.
            continue
        return structure[0] if isinstance(structure, list) and len(structure) == 1 else structure
    return None


def by_name(structure: Any) -> dict[str, Any]:
    """Returns path -> leaf of a structure, `0/image`; the path of an only leaf is empty."""
    leaves = flatten_with_path(structure)
    return {"/".join(map(str, path)): leaf for path, leaf in leaves}


def recorded_names(
    part: str, reference: Reference, values: Mapping[str, Any], names: Sequence[str]
) -> dict[str, str]:
    """Returns the name of an input or output in the model -> its name in the reference.

    Args:
      part: `inputs` or `outputs`, the attribute of the reference.
      reference: the reference.
      values: the model's, as `by_name` returns them.
      names: further names of these, in their order.

    Raises:
      CheckpointError: when the model has none of a name in the reference, or computes numbers with
        a fraction where outputs without one were recorded.
    """
    known = {name: name for name in values}
    known |= {str(position): name for position, name in enumerate(values)}
    known |= dict(zip(names, values, strict=False))
    if len(values) == 1:
        known[""] = next(iter(values))
    recorded = getattr(reference, part)
    called = ", ".join(names or filter(None, values))
    cause = f"its {part} are {called}" if called else f"its only {part[:-1]} has no name"
    remedy = (
        f"record {part} under the model's names or positions"
        if called
        else f"record it as `{part}`"
    )
    problems = [
        Problem(
            f"{reference.path}: the model has no {part}/{name}".rstrip("/"),
            cause,
            remedy,
            tuple(f"{part}/{choice}" for choice in names or values if choice),
        )
        for name in recorded
        if name not in known
    ]
    for name, array in recorded.items() if part == "outputs" else ():
        computed = array_of(values[known[name]]).dtype if name in known else array.dtype
        if computed.kind == "f" and array.dtype.kind != "f":
            state = f"{reference.path}: {f'outputs/{name}'.rstrip('/')} holds {array.dtype}"
            remedy = "record what the model computes, such as logits"
            problems.append(Problem(state, f"the model computes {computed}", remedy))
    if problems:
        raise CheckpointError(*problems)
    return {known[name]: name for name in recorded}


def _arranged(name: str, spec: Any, reference: Reference) -> Any:
    """Returns an input with its channels where the model has them, in the dtype that it takes."""
    array = reference.inputs[name]
    arrangements = [array]
    if array.ndim > 2:
        moved = [np.moveaxis(array, 1, -1), np.moveaxis(array, -1, 1)]
        # The layout that was recorded decides where a shape fits both ways.
        first = reference.channels_first and array.ndim > 3
        arrangements = [moved[0], array] if first else [array, *moved]
    fitting = [a for a in arrangements if spec is None or _fits(a.shape, spec.shape)]
    if not fitting:
        raise CheckpointError.of(
            f"{reference.path}: {f'inputs/{name}'.rstrip('/')} has the shape {[*array.shape]}",
            f"the model takes {[None, *spec.shape[1:]]}",
            "record inputs of the model's size; channels may be first or last",
        )
    dtype = getattr(spec, "dtype", None)
    return keras.ops.convert_to_tensor(np.ascontiguousarray(fitting[0]), dtype=dtype)


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Whether an input has the shape that the model wants, with any number of examples."""
    return len(shape) == len(wanted) and all(
        size is None or size == actual for actual, size in zip(shape[1:], wanted[1:], strict=True)
    )


def activation_of(layer: Any) -> Any:
    """Returns what a layer computes last, if it says so; a user's may hold the name alone."""
    function = getattr(layer, "activation", None)
    return function if callable(function) else None


def array_of(value: Any) -> NDArray[Any]:
    """Returns an output of a layer as an array; of several, the first."""
    return np.asarray(tf.convert_to_tensor(keras.tree.flatten(value)[0]).numpy())
