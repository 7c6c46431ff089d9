"""Random nested Keras models, built twice: in another order of making layers, or of branches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

# So many features has every tensor in a model, so that shapes say little.
WIDTH = 4
KINDS = ("dense", "einsum", "norm", "batch_norm", "rnn", "conv")


@dataclass(frozen=True)
class Node:
    """A layer, or a sub-model with `parts`.

    Attributes:
      key: identifies it in both models.
      kind: one of `KINDS`, `model`, or `branches`, whose parts are summed.
      name: what the program calls it; empty where Keras counts.
      parts: what it holds, in order.
    """

    key: str
    kind: str
    name: str = ""
    parts: tuple[Node, ...] = ()

    def layers(self) -> Iterator[Node]:
        """Yields itself and what it holds, as far as these are layers or models."""
        if self.kind != "branches":
            yield self
        for part in self.parts:
            yield from part.layers()


def random_node(rng: random.Random, key: str = "net", depth: int = 0) -> Node:
    """A model of one to four parts; a half of the layers have names."""
    parts = []
    for number in range(rng.randint(1, 4)):
        inner = f"{key}.{number}"
        kind = rng.choice(KINDS if depth > 1 else (*KINDS, "model", "branches"))
        name = f"n{inner.replace('.', '_')}" if rng.random() < 0.5 else ""
        if kind == "model":
            parts.append(replace(random_node(rng, inner, depth + 1), name=name))
        elif kind == "branches":
            named = rng.random() < 0.5
            branches = [
                Node(
                    f"{inner}.{at}",
                    rng.choice(KINDS[:3]),
                    f"n{inner.replace('.', '_')}_{at}" if named else "",
                )
                for at in range(2)
            ]
            parts.append(Node(inner, kind, "", tuple(branches)))
        else:
            parts.append(Node(inner, kind, name))
    return Node(key, "model", "", tuple(parts))


def reordered(node: Node, rng: random.Random) -> Node:
    """The same model, whose branches come in another order where all of them have names."""
    parts = [reordered(part, rng) for part in node.parts]
    if node.kind == "branches" and all(part.name for part in parts):
        rng.shuffle(parts)
    return replace(node, parts=tuple(parts))


def changed(node: Node, rng: random.Random) -> Node:
    """A model with one layer more or less, somewhere."""
    models = [at for at, part in enumerate(node.parts) if part.kind == "model"]
    parts = [*node.parts]
    if models and rng.random() < 0.5:
        at = rng.choice(models)
        parts[at] = changed(parts[at], rng)
    elif len(parts) > 1 and rng.random() < 0.4:
        del parts[rng.randrange(len(parts))]
    else:
        kind = rng.choice([*KINDS, *(part.kind for part in parts if part.kind in KINDS)])
        added = Node(f"{node.key}.new", kind, rng.choice(["", "added"]))
        parts.insert(rng.randint(0, len(parts)), added)
    return replace(node, parts=tuple(parts))


def _layer(node: Node) -> Any:
    name: dict[str, Any] = {"name": node.name} if node.name else {}
    layers = keras.layers
    return {
        "dense": lambda: layers.Dense(WIDTH, **name),
        "einsum": lambda: layers.EinsumDense("btc,cd->btd", (None, WIDTH), bias_axes="d", **name),
        "norm": lambda: layers.LayerNormalization(**name),
        "batch_norm": lambda: layers.BatchNormalization(**name),
        "rnn": lambda: layers.GRU(WIDTH, return_sequences=True, **name),
        "conv": lambda: layers.Conv1D(WIDTH, 1, **name),
    }[node.kind]()


def build(
    node: Node, rng: random.Random, frozen: frozenset[str] = frozenset()
) -> tuple[keras.Model, dict[str, Any]]:
    """Builds a model, whose layers are made in a random order.

    Returns:
      The model, and key of a node and number of a variable in its layer -> the variable.
    """
    made = [layer for layer in node.layers() if layer.kind != "model"]
    rng.shuffle(made)
    layers = {layer.key: _layer(layer) for layer in made}
    for key in frozen & layers.keys():
        layers[key].trainable = False

    def connect(part: Node, value: Any) -> Any:
        if part.kind == "model":
            return model_of(part)(value)
        if part.kind == "branches":
            return keras.layers.Add()([connect(branch, value) for branch in part.parts])
        return layers[part.key](value)

    def model_of(part: Node) -> keras.Model:
        first = value = keras.Input((3, WIDTH))
        for inner in part.parts:
            value = connect(inner, value)
        return keras.Model(first, value, **({"name": part.name} if part.name else {}))

    model = model_of(node)
    return model, {
        f"{key}/{number}": variable
        for key, layer in layers.items()
        for number, variable in enumerate(layer.weights)
        if "seed" not in variable.path
    }


def fill(variables: dict[str, Any], seed: int) -> dict[str, NDArray[Any]]:
    """Gives every variable values of its own, and returns them."""
    rng = np.random.default_rng(seed)
    values = {}
    for key in sorted(variables):
        # Adafactor keeps integers for vectors.
        dtype = np.dtype(str(getattr(variables[key].dtype, "name", variables[key].dtype)))
        values[key] = rng.uniform(0.5, 2, variables[key].shape).astype(dtype)
        variables[key].assign(values[key])
    return values


def named(node: Node) -> Node:
    """The same model, in which every layer has a name."""
    parts = tuple(named(part) for part in node.parts)
    return replace(node, name=f"n{node.key.replace('.', '_')}", parts=parts)


def as_torch(
    node: Node, variables: dict[str, Any], values: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The tensors that PyTorch would have for a model's values, by name."""
    tensors: dict[str, NDArray[Any]] = {}
    for layer in node.layers():
        held = [values[key] for key in variables if key.rpartition("/")[0] == layer.key]
        if layer.kind in ("dense", "einsum"):
            parts = {"weight": held[0].T, "bias": held[1]}
        elif layer.kind == "conv":
            parts = {"weight": held[0].transpose(2, 1, 0), "bias": held[1]}
        elif layer.kind in ("norm", "batch_norm"):
            names = ("weight", "bias", "running_mean", "running_var")
            parts = dict(zip(names, held, strict=False))
        elif layer.kind == "rnn":
            # Keras has the gates z, r, n, PyTorch r, z, n.
            gates = [part.reshape(*part.shape[:-1], 3, WIDTH)[..., [1, 0, 2], :] for part in held]
            kernel, recurrent, bias = (part.reshape(*part.shape[:-2], -1) for part in gates)
            parts = {
                "weight_ih_l0": kernel.T,
                "weight_hh_l0": recurrent.T,
                "bias_ih_l0": bias[0],
                "bias_hh_l0": bias[1],
            }
        else:
            continue
        tensors |= {f"{layer.name}.{end}": np.ascontiguousarray(p) for end, p in parts.items()}
    return tensors
