"""The names that Keras gives variables, from the groups of a Keras 3 weights file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.checkpoints.reader import TensorSpec

# A weights file numbers a layer's variables in the order in which the layer makes them. The names
# are given only where the class of the layer and the number of variables leave one possibility.
_BIASED = (("kernel", "bias"), ("kernel",))
_RECURRENT = (("kernel", "recurrent_kernel", "bias"), ("kernel", "recurrent_kernel"))
_SEPARABLE = (
    ("depthwise_kernel", "pointwise_kernel", "bias"),
    ("depthwise_kernel", "pointwise_kernel"),
)
_VARIABLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dense": _BIASED,
    "einsum_dense": _BIASED,
    "embedding": (("embeddings",),),
    "batch_normalization": (
        ("gamma", "beta", "moving_mean", "moving_variance"),
        ("moving_mean", "moving_variance"),
    ),
    "layer_normalization": (("gamma", "beta"),),
    **{f"conv{n}d": _BIASED for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": _BIASED for n in (1, 2, 3)},
    **{f"depthwise_conv{n}d": _BIASED for n in (1, 2)},
    **{f"separable_conv{n}d": _SEPARABLE for n in (1, 2)},
}
_RECURRENT_LAYERS = ("lstm", "gru", "simple_rnn")


def aliases(tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns Keras's path of a variable, e.g. `cnn/conv1/kernel`, -> tensor name.

    Args:
      tensors: tensor name, e.g. `cnn/layers/conv2d/vars/0`, -> spec.
      layers: group of a layer, e.g. `cnn/layers/conv2d`, -> the layer's name, e.g. `conv1`; the
        model's own group is empty.
    """
    found: dict[str, list[str]] = {}
    for group in layers:
        prefix = f"{group}/vars/"
        numbered = sorted(
            (name for name in tensors if name.startswith(prefix)),
            key=lambda name: name.removeprefix(prefix).zfill(9),
        )
        if not group or any("float" not in tensors[name].dtype for name in numbered):
            # Quantized layers number their scales among the variables.
            continue
        path = _path(group, layers)
        for names in _variables(group, layers):
            if len(names) == len(numbered):
                for variable, tensor in zip(names, numbered, strict=True):
                    found.setdefault(f"{path}/{variable}", []).append(tensor)
    return {
        alias: tensor[0]
        for alias, tensor in sorted(found.items())
        if len(tensor) == 1 and alias not in tensors
    }


def _path(group: str, layers: Mapping[str, str]) -> str:
    parts = group.split("/")
    prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return "/".join(layers[prefix] for prefix in prefixes if prefix in layers)


def _variables(group: str, layers: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    parent, _, last = group.rpartition("/")
    if last == "cell" and _class(parent, layers) in _RECURRENT_LAYERS:
        return _RECURRENT
    return _VARIABLES.get(_class(group, layers), ())


def _class(group: str, layers: Mapping[str, str]) -> str:
    """Returns the layer's class in snake case; empty where the group is called by an attribute.

    In a list of layers the groups are called by class and number; a list is no layer itself.
    """
    parent, _, last = group.rpartition("/")
    if not parent or parent in layers:
        return ""
    return re.sub(r"_\d+$", "", last)
