"""Explains why a Keras layer differs from its module in the source: settings, flatten, tensors."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from runner.checkpoints import files
from runner.console import plural
from runner.planning.comparison import Comparison
from runner.planning.plan import Assignment, RestorationPlan
from runner.proof.reference import Reference

_CONFIG = "config.json"
# How many layers a line names.
_NAMED = 8
# Setting -> its names in a module, in a `config.json`, and in a Keras layer.
_SETTINGS = {
    "epsilon": (
        ("eps", "epsilon", "variance_epsilon"),
        ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps"),
        "epsilon",
    ),
    "momentum (of training alone)": (("momentum",), (), "momentum"),
    "stride": (("stride", "strides"), (), "strides"),
    "padding": (("padding",), (), "padding"),
    "dilation": (("dilation",), (), "dilation_rate"),
    "groups": (("groups",), (), "groups"),
    "activation": (("activation",), ("hidden_act", "activation_function"), "activation"),
}


def source_config(plan: RestorationPlan | None, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the source's `config.json`, as it was recorded or as it is beside a checkpoint."""
    paths = [spec.path for spec in plan.sources.values() if spec] if plan else []
    for path in [] if recorded else paths:
        file = os.path.join(os.path.dirname(path), _CONFIG)
        if files.is_file(file):
            try:
                content = json.loads(files.read_text(file))
            except (OSError, ValueError):
                continue
            if isinstance(content, dict):
                return content
    return recorded


def differing_settings(
    layer: Any, module: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[str]:
    """Yields a line for each setting of a layer that its module, or else the config, contradicts.

    Args:
      layer: the Keras layer.
      module: the recorded settings of the module.
      config: the source's `config.json`, with settings of the whole model.
    """
    for name, (in_module, in_config, attribute) in _SETTINGS.items():
        theirs = next((module[key] for key in in_module if key in module), None)
        if theirs is None and not isinstance(layer, keras.layers.BatchNormalization):
            theirs = next((config[key] for key in in_config if key in config), None)
        ours = getattr(layer, attribute, None)
        if theirs is None or ours is None:
            continue
        if name == "activation":
            ours = ours.__name__ if callable(ours) else ours
        if attribute == "momentum" and "BatchNorm" in str(module.get("type", "")):
            theirs = 1 - theirs  # PyTorch's is the weight of the new batch.
        if name == "padding" and not isinstance(theirs, str):
            if _may_pad_alike(layer, theirs):
                continue
        elif _plain(ours) == _plain(theirs):
            continue
        yield f"{name}: {_plain(theirs)} in the source, {_plain(ours)} here"


def _may_pad_alike(layer: Any, padding: Any) -> bool:
    """Whether a convolution, perhaps with a `ZeroPadding` before it, may pad as PyTorch's does.

    `padding` is the number of entries on both sides, or one number for each axis.
    """
    sizes, strides = getattr(layer, "kernel_size", None), getattr(layer, "strides", None)
    if layer.padding != "same" or not (isinstance(sizes, tuple) and isinstance(strides, tuple)):
        return True
    dilations = getattr(layer, "dilation_rate", (1,) * len(sizes))
    amounts = padding if isinstance(padding, Sequence) else [padding] * len(sizes)
    return all(
        stride == 1 and 2 * amount == (size - 1) * dilation
        for size, stride, amount, dilation in zip(sizes, strides, amounts, dilations, strict=False)
    )


def _plain(value: Any) -> Any:
    """Returns the one number in `(2, 2)`, and other values rounded as people write them."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        values = {_plain(item) for item in value}
        return values.pop() if len(values) == 1 else tuple(value)
    return float(f"{value:.2g}") if isinstance(value, float) else value


def common_settings(lines: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns each of the layers' lines once, with the number of layers."""
    counts = Counter(line for some in lines.values() for line in some)
    return tuple(f"{line} ({plural(count, 'layer')})" for line, count in counts.items())


def further_causes(guilty: Sequence[Comparison]) -> Iterator[str]:
    """Yields a line for each cause behind the first one, of two exchanged layers for one of them.

    Args:
      guilty: the layers with wrong tensors, in the order of the proof.
    """
    named = list[str]()
    for one in guilty:
        if not any(one.note.startswith(f"exchanged with {path}:") for path in named):
            if named:
                yield f"further cause: {one.layer} ({one.module}): {one}"
            named.append(one.layer)


def other_examples(reference: Reference) -> Iterator[str]:
    """Yields a line for outputs, or activations, none of which has the examples of the inputs."""
    examples = {array.shape[0] for array in reference.inputs.values() if array.ndim}
    for part, arrays in {"output": reference.outputs, "activation": reference.outlines}.items():
        if arrays and not any(examples & {*array.shape[:2]} for array in arrays.values()):
            batch = " or ".join(map(str, sorted(examples)))
            yield f"no {part} has the {batch} examples of the inputs: record the whole batch"


def unproven(layers: Sequence[str]) -> Iterator[str]:
    """Yields a line with layers that reach a difference and that no record shows to be right."""
    if layers:
        names = ", ".join(layers[:_NAMED]) + ", ..." * (len(layers) > _NAMED)
        yield f"the cause may also be in layers before it that no record shows to be right: {names}"


def origins_of_variables(
    assignments: Sequence[Assignment], plan: RestorationPlan, module: Mapping[str, Any]
) -> Iterator[str]:
    """Yields where the variables of a layer came from, and tensors of its module that none takes.

    Args:
      assignments: the assignments of the layer's variables.
      plan: the plan.
      module: the recorded settings of the module.
    """
    modules: dict[str, set[str]] = {}
    for assignment in assignments:
        leaf = assignment.variable.name.rpartition("/")[2]
        piece = assignment.source_tensor
        if piece is None:
            yield f"{leaf}: no tensor, {assignment.variable.initializer or 'unchanged'}"
        else:
            steps = f" ({', '.join(piece.steps)})" if piece.steps else ""
            yield f"{leaf}: from {' + '.join(piece.names) or 'no tensor'}{steps}"
            parents = {name[: -len(_leaf(name))] for name in piece.names}
            modules.setdefault(piece.source, set()).update(parents)
            yield from _taken_twice(leaf, assignment, plan)
            padding = module.get("padding_idx")
            for tensor in piece.tensors if padding is not None else ():
                if tensor.shape[:1] > assignment.variable.tensor.shape[:1]:
                    begin = f"positions begin at row {int(padding or 0) + 1}"
                    yield f"rows: of {tensor.shape[0]} in the source, {begin}"
    for source, parents in modules.items():
        for name in plan.unused[source]:
            if name[: -len(_leaf(name))] in parents and _leaf(name) not in _NOT_WEIGHTS:
                yield f"dropped: no variable takes {name}"


def _taken_twice(leaf: str, assignment: Assignment, plan: RestorationPlan) -> Iterator[str]:
    """Yields which variable takes the same, and the tensors of that shape that none takes."""
    piece, name = assignment.source_tensor, assignment.variable.name
    others = [a.variable.name for a in plan.assignments if a.source_tensor == piece]
    others.remove(name)
    source = plan.sources[piece.source] if piece and others else None
    if piece and source:
        shapes, unused = {tensor.shape for tensor in piece.tensors}, plan.unused[piece.source]
        free = [name for name in unused if (spec := source.find(name)) and spec.shape in shapes]
        names = ", ".join(free[:_NAMED])
        if free:
            yield f"{leaf}: {others[0]} takes the same, no variable takes {names}"


def _leaf(tensor: str) -> str:
    return tensor.replace("/", ".").rpartition(".")[2]


_NOT_WEIGHTS = ("num_batches_tracked", "position_ids")


def channels_first_flattened(value: Any, before: Sequence[int]) -> Any:
    """Returns flattened spatial maps, `[examples, values]`, flattened with the channels first.

    Args:
      value: what Keras flattened, channels last.
      before: the shape of the maps, with the examples.
    """
    maps = np.asarray(value).reshape(before)
    return np.moveaxis(maps, -1, 1).reshape(len(maps), -1)
