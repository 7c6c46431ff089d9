"""Keras's paths of variables, e.g. `cnn/conv1/kernel`, in weights files that only number them."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.checkpoints.reader import TensorSpec

# A weights file numbers a layer's variables in the order in which the layer creates them. It names
# a layer in a list by its class, and a layer in an attribute by the attribute. Names are derived
# only if class and number, or else the shapes, leave one possibility among Keras's layers.
_BIASED = (("kernel", "bias"), ("kernel",))
_NORMALIZED = ("gamma", "beta", "moving_mean", "moving_variance")
_RECURRENT = (("kernel", "recurrent_kernel", "bias"), ("kernel", "recurrent_kernel"))
_SEPARABLE = (
    ("depthwise_kernel", "pointwise_kernel", "bias"),
    ("depthwise_kernel", "pointwise_kernel"),
)
_VARIABLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dense": _BIASED,
    "einsum_dense": _BIASED,
    "embedding": (("embeddings",),),
    "batch_normalization": (_NORMALIZED, ("moving_mean", "moving_variance")),
    "layer_normalization": (("gamma", "beta"),),
    "group_normalization": (("gamma", "beta"),),
    "normalization": (("mean", "variance", "count"),),
    **{f"conv{n}d": _BIASED for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": _BIASED for n in (1, 2, 3)},
    **{f"depthwise_conv{n}d": _BIASED for n in (1, 2)},
    **{f"separable_conv{n}d": _SEPARABLE for n in (1, 2)},
}
_STATISTICS = ("moving_mean", "moving_variance", "mean", "variance", "count")
_RECURRENT_LAYERS = ("lstm", "gru", "simple_rnn")


def keras_paths(tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns Keras's path of a variable, e.g. `cnn/conv1/kernel`, -> tensor name.

    Args:
      tensors: tensor name, e.g. `cnn/layers/conv2d/vars/0`, -> spec.
      layers: group of a layer, e.g. `cnn/layers/conv2d`, -> the layer's name, e.g. `conv1`; the
        model's group is empty.
    """
    in_groups: dict[str, list[str]] = {}
    for name in sorted(tensors, key=lambda name: (len(name), name)):  # 2 comes before 10.
        in_groups.setdefault(name.rpartition("/vars/")[0], []).append(name)
    candidates: dict[str, list[str]] = {}
    for group in layers:
        numbered = in_groups.get(group, [])
        integers = any("float" not in tensors[name].dtype for name in numbered)
        if not group or (integers and _class(group, layers) != "normalization"):
            # Quantized layers number their scales among the variables.
            continue
        path = _layer_path(group, layers)
        shapes = [tensors[name].shape for name in numbered]
        for names in _variables(group, layers, shapes):
            if len(names) == len(numbered):
                for variable, tensor in zip(names, numbered, strict=True):
                    candidates.setdefault(f"{path}/{variable}", []).append(tensor)
    return {
        alias: names[0]
        for alias, names in sorted(candidates.items())
        if len(names) == 1 and alias not in tensors
    }


def layers_in_order(config: str | bytes) -> dict[str, bool]:
    """Returns group -> whether it trains, of the layers in a model's configuration, in order.

    It is empty for a model that is not functional or sequential.
    """
    try:
        return dict(_layers_of(json.loads(config), "", trains=True))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # The weights are complete without it.


def layer_names(config: Any) -> list[str]:
    """Returns the names of the layers in a model's configuration, in order, if all differ."""
    try:
        names = list(_names_of(json.loads(config)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []  # The weights are complete without it.
    return names if len({*names}) == len(names) else []


def _names_of(node: Any) -> Iterator[str]:
    for layer in node["config"].get("layers", ()):
        yield str(layer["config"]["name"])
        yield from _names_of(layer)


def _layers_of(node: Any, group: str, *, trains: bool) -> Iterator[tuple[str, bool]]:
    counts: Counter[str] = Counter()
    for layer in node["config"].get("layers", ()):
        kind = _snake_case(layer["class_name"])
        number = f"_{counts[kind]}" if counts[kind] else ""
        counts[kind] += 1
        child = f"{group}layers/{kind}{number}"
        is_trained = trains and layer["config"].get("trainable") is not False
        yield child, is_trained
        yield from _layers_of(layer, f"{child}/", trains=is_trained)


def _snake_case(name: str) -> str:
    """Returns how Keras names the group of a layer in a list, after its class."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _layer_path(group: str, layers: Mapping[str, str]) -> str:
    prefixes = itertools.accumulate(group.split("/"), lambda path, part: f"{path}/{part}")
    return "/".join(layers[prefix] for prefix in prefixes if prefix in layers)


def _variables(
    group: str, layers: Mapping[str, str], shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, ...], ...]:
    parent, _, last = group.rpartition("/")
    if last == "cell" and parent in layers:
        recurrent = _class(parent, layers) in _RECURRENT_LAYERS or _is_recurrent(shapes)
        return _RECURRENT if recurrent else ()
    if parent and parent not in layers:
        return _VARIABLES.get(_class(group, layers), ())
    return _of_shapes(shapes)


def leaves_of(group: str, shapes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """Returns the names of the variables that a group numbers, by its class; or none."""
    known = _VARIABLES.get(_class(group, {}), ())
    fitting = [names for names in known if len(names) == len(shapes)]
    return fitting[0] if len(fitting) == 1 else ()


def trained_first(group: str, layers: Mapping[str, str], shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns how many of a layer's variables train unless it is frozen: they come first.

    All of a layer of unknown class do.
    """
    for names in _variables(group, layers, shapes):
        if len(names) == len(shapes):
            return sum(name not in _STATISTICS for name in names)
    return len(shapes)


def _of_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[str, ...], ...]:
    """Returns the names that fit a layer of unknown class: a dense one, a convolution, a norm."""
    ranks = tuple(map(len, shapes))
    if len(shapes) == 2 and 2 <= ranks[0] <= 5 and ranks[1] == 1:
        # A transposed convolution has its outputs before its inputs, a depthwise one both together.
        *spatial, before, last = shapes[0]
        widths = (last, before, before * last) if spatial else (last,)
        return _BIASED if shapes[1][0] in widths else ()
    if ranks == (1, 1, 1, 1) and len(set(shapes)) == 1:
        return (_NORMALIZED,)
    return ()


def _is_recurrent(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether the shapes fit a kernel, a recurrent kernel and an optional bias."""
    if len(shapes) not in (2, 3) or [len(shape) for shape in shapes[:2]] != [2, 2]:
        return False
    (_, width), (units, same) = shapes[:2]
    return same == width and units > 0 and width in (units, 3 * units, 4 * units)


def _class(group: str, layers: Mapping[str, str]) -> str:
    """Returns the layer's class in snake case; empty if the group is named after an attribute.

    In a list of layers the groups are named by class and number; the list itself is no layer.
    """
    parent, _, last = group.rpartition("/")
    if not parent or parent in layers:
        return ""
    return re.sub(r"_\d+$", "", last)
