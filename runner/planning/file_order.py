"""Says in which orders the layers of a Keras weights file may have trained."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from runner.checkpoints.formats.keras_names import trained_first
from runner.checkpoints.reader import CheckpointSpec
from runner.planning.optimizer_slots import Block, FileOrder, Trained
from runner.planning.places import Places, WeightsLayout, list_class

_NUMBER = re.compile(r"_(\d+)$")


def file_order(places: Places, spec: CheckpointSpec) -> FileOrder:
    """Returns the layers of a weights file in chains, within which their order is known.

    The model says what trains in a layer that it has too; the layer's class does for any other.
    """
    tensors = places.within("", "")
    ranks = {layer: rank for rank, layer in enumerate(spec.trained)}
    chains: dict[tuple[str, ...], dict[int, Block]] = {}
    for layer, block in (*_shared(places, tensors, spec), *_others(places, tensors, spec)):
        if spec.trained.get(layer) is False:
            continue
        kind = list_class(layer, places.file.layers)
        chain: tuple[str, ...] = (layer,)
        number = 0
        if layer in ranks:
            chain, number = ("",), ranks[layer]
        elif kind is not None:
            match = _NUMBER.search(layer)
            chain, number = (layer.rpartition("/")[0], kind), int(match[1]) if match else 0
        if number in chains.get(chain, {}):  # Several parts of one layer, in an order of its own.
            chain = (layer, block[0].tensor)
        chains.setdefault(chain, {})[number] = block
    ordered = [[chain[number] for number in sorted(chain)] for chain in chains.values()]
    held = places.model.variables.values()
    return FileOrder(ordered, frozenset(name for names in held for name in names.values()))


def _shared(
    places: Places, tensors: Mapping[str, str], spec: CheckpointSpec
) -> Iterator[tuple[str, Block]]:
    """Yields the layers that the model has too: group in the file, and what trains."""
    for names in places.model.trainable:
        held = [name for name in names if name in tensors]
        if held:
            yield (
                _layer_of(held[0], names, tensors[held[0]], places),
                tuple(_trained(spec, tensors[name], name) for name in held),
            )


def _layer_of(variable: str, names: Sequence[str], tensor: str, places: Places) -> str:
    """Returns the group in the file of the layer that holds variables, and maybe layers."""
    around = os.path.commonpath([places.group(name) for name in names])
    inner = places.group(variable).removeprefix(around)
    return tensor.rpartition("/vars/")[0].removesuffix(inner)


def _others(
    places: Places, tensors: Mapping[str, str], spec: CheckpointSpec
) -> Iterator[tuple[str, Block]]:
    """Yields the groups that the model lacks, under the layer in a list that they are in."""
    known = {*tensors.values()}
    file = places.file
    for group, held in file.variables.items():
        others = [held[number] for number in sorted(held, key=int)]
        floats = [tensor for tensor in others if "float" in spec.tensors[tensor].dtype]
        count = trained_first(group, file.layers, [spec.tensors[name].shape for name in floats])
        if known.isdisjoint(others) and count:
            block = tuple(_trained(spec, tensor) for tensor in floats[:count])
            yield _listed(group, file), block


def _listed(group: str, file: WeightsLayout) -> str:
    """Returns the innermost layer in a list around a group, or the group."""
    around = [group[: match.start()] for match in re.finditer("/|$", group)]
    listed = (part for part in reversed(around) if list_class(part, file.layers) is not None)
    return next((part for part in listed if part in file.layers), group)


def _trained(spec: CheckpointSpec, tensor: str, variable: str = "") -> Trained:
    return Trained(tensor, variable, spec.tensors[tensor].shape)
