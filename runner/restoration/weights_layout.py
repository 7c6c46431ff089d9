"""Names the tensors in a Keras weights file by the places where Keras saves a model's variables.

A weights file numbers the variables of a layer: `layers/conv2d/vars/0`. It has the names of layers,
but neither the names of variables nor their scopes, so these come from the model; the names of an
optimizer's numbered variables come from the model's optimizer.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from runner.checkpoints.reader import CheckpointSpec
from runner.internals.keras import saved_groups
from runner.restoration.plan import LocatedSources

_LOGGER = logging.getLogger(__name__)
_COUNTED = re.compile(r"_\d+$")
_OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class WeightsLayout:
    """The groups of a weights file, without its optimizer's.

    Attributes:
      layers: group of a layer, e.g. `cnn/layers/conv2d` -> the layer's name, e.g. `conv1`; without
        the model itself.
      variables: group -> number -> the variable's name, or of a file the tensor's; for groups that
        have any.
    """

    layers: Mapping[str, str]
    variables: Mapping[str, Mapping[str, str]]

    def named(self, spec: CheckpointSpec) -> CheckpointSpec:
        """Returns a checkpoint's spec with the model's names of its tensors as aliases.

        A file of the model, or of a part of it, is matched by the names of its layers, or by
        position, as Keras does, if it has the same layers in the same places and their names differ
        only in the numbers that Keras appends. The file of a part has names without that part's.
        """
        file = _of_file(spec)
        aliases = {**spec.aliases, **self._of_parts(file), **self._in(file)}
        return replace(
            spec, aliases={name: aliases[name] for name in aliases if name not in spec.tensors}
        )

    def _in(self, file: WeightsLayout) -> dict[str, str]:
        """Returns variable -> tensor for a file of the model that has this layout."""
        by_path = file._by_path()
        pairs = {
            group: by_path[self.path(group)]
            for group, variables in self.variables.items()
            if self.path(group) in by_path
            and variables.keys() == file.variables[by_path[self.path(group)]].keys()
        }
        if len(pairs) < len(self.variables) and self._is_like(file):
            pairs = {group: group for group in self.variables}
        return {
            name: file.variables[pairs[group]][number]
            for group in pairs
            for number, name in self.variables[group].items()
        }

    def _of_parts(self, file: WeightsLayout) -> dict[str, str]:
        """Returns variable -> tensor for a file of a part of the model, where parts agree."""
        tensors: dict[str, set[str]] = {}
        groups = {prefix for group in self.variables for prefix in _prefixes(group)[:-1]}
        for part in groups & self.layers.keys():
            for name, tensor in self._part(part)._in(file).items():
                tensors.setdefault(name, set()).add(tensor)
        return {name: several.pop() for name, several in tensors.items() if len(several) == 1}

    def _by_path(self) -> dict[tuple[str, ...], str]:
        """Returns the names of the layers around a group -> the group, if no other has the same."""
        paths = Counter(map(self.path, self.variables))
        return {self.path(group): group for group in self.variables if paths[self.path(group)] == 1}

    def _is_like(self, file: WeightsLayout) -> bool:
        """Whether both have the same layers in the same places, but for numbers in their names."""
        numbers = {group: variables.keys() for group, variables in self.variables.items()}
        if numbers != {group: held.keys() for group, held in file.variables.items()}:
            return False
        places = {prefix for group in numbers for prefix in _prefixes(group)}
        return all(_alike(place, self.layers, file.layers) for place in places)

    def path(self, group: str) -> tuple[str, ...]:
        """Returns the names of the layers around a group, outermost first."""
        return tuple(self.layers[prefix] for prefix in _prefixes(group) if prefix in self.layers)

    def _part(self, part: str) -> WeightsLayout:
        """Returns the layout of a file of one layer alone, whose name is left out of the others."""
        prefix, scope = f"{part}/", "".join(f"{layer}/" for layer in self.path(part))
        return WeightsLayout(
            {
                group.removeprefix(prefix): name
                for group, name in self.layers.items()
                if group.startswith(prefix)
            },
            {
                group.removeprefix(part).lstrip("/"): {
                    number: name.removeprefix(scope) for number, name in variables.items()
                }
                for group, variables in self.variables.items()
                if group == part or group.startswith(prefix)
            },
        )


@dataclass(frozen=True)
class Slots:
    """The variables of a built Keras optimizer, without its learning rate.

    Attributes:
      kind: the optimizer's class, e.g. `AdamW`.
      shapes: name -> shape, in the order of creation, for which the trained variables are in the
        model's order: so are they in a file. Slots are named after their variables.
    """

    kind: str
    shapes: Mapping[str, tuple[int, ...]]

    def named(self, spec: CheckpointSpec) -> CheckpointSpec:
        """Returns the spec of a weights file with the names of the optimizer's tensors as aliases.

        There are none if the file's optimizer is of another class or trained other variables. The
        file only numbers its variables, so all shapes must agree.
        """
        counted = _COUNTED.sub("", spec.layers.get(_OPTIMIZER, ""))
        if counted.replace("_", "").lower() != self.kind.lower():
            return spec
        numbered = {
            int(number): tensor
            for tensor in spec.tensors
            if (number := tensor.removeprefix(f"{_OPTIMIZER}/vars/")).isdecimal()
        }
        tensors = [numbered[number] for number in sorted(numbered)]
        if len(tensors) == len(self.shapes) + 1:
            del tensors[1]  # The learning rate, unless that is a schedule.
        if [spec.tensors[tensor].shape for tensor in tensors] != [*self.shapes.values()]:
            return spec
        aliases = dict(zip(self.shapes, tensors, strict=True))
        return replace(spec, aliases={**spec.aliases, **aliases})


def named_sources(
    located: LocatedSources, layout: Callable[[], WeightsLayout], slots: Slots | None = None
) -> LocatedSources:
    """Returns the checkpoints of scaffolds, with a model's names for Keras weights files.

    `layout` is called only if needed, as it takes 1 ms per layer. `slots` are None if they are not
    restored.
    """
    files = {name: spec for name, spec in located.specs.items() if spec and spec.layers}
    if not files:
        return located
    known = layout()
    named = {name: known.named(spec) for name, spec in files.items()}
    if slots is not None:
        named = {name: slots.named(spec) for name, spec in named.items()}
    return replace(located, specs={**located.specs, **named})


def weights_layout(model: Any, variables: Mapping[str, Any]) -> WeightsLayout:
    """Returns the layout of the weights file of a Keras model with these variables, by name."""
    names = {id(variable): name for name, variable in variables.items()}
    layers, groups = _groups(model)
    return WeightsLayout(
        layers,
        {
            group: {number: names[id(variable)] for number, variable in held.items()}
            for group, held in groups.items()
            if held and all(id(variable) in names for variable in held.values())
        },
    )


def layers_around(model: Any) -> dict[int, tuple[str, ...]]:
    """Returns the `id` of a Keras variable of a model -> the names of the layers that it is in."""
    layers, groups = _groups(model)
    layout = WeightsLayout(layers, {})
    return {
        id(variable): layout.path(group)
        for group, held in groups.items()
        for variable in held.values()
    }


def _groups(model: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Returns the layers of a model as in `WeightsLayout`, and group -> number -> variable."""
    try:
        with tf.Graph().as_default():  # Keras reads every attribute, and some may compute.
            groups = saved_groups(model)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        # A layer's own `save_own_variables` may need values, which a graph has none of.
        _LOGGER.debug("%s cannot be saved here: %r", model, error)
        return {}, {}
    layers = {group: name for group, (name, _) in groups.items() if group and name}
    return layers, {group: held for group, (_, held) in groups.items()}


def _of_file(spec: CheckpointSpec) -> WeightsLayout:
    variables: dict[str, dict[str, str]] = {}
    for tensor in spec.tensors:
        group, _, number = f"/{tensor}".rpartition("/vars/")
        if number.isdecimal() and not group.startswith(f"/{_OPTIMIZER}"):
            variables.setdefault(group.removeprefix("/"), {})[number] = tensor
    return WeightsLayout({group: name for group, name in spec.layers.items() if group}, variables)


def _prefixes(group: str) -> list[str]:
    """Returns `a`, `a/b` and `a/b/c` for `a/b/c`."""
    return list(itertools.accumulate(group.split("/"), "{}/{}".format))


def _alike(group: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether a place has layers of one name, or of names that Keras has counted up.

    A layer in a list has a counted name if it is named after its class, as the group is.
    """
    if ours.get(group) == theirs.get(group):
        return True
    if group not in ours or group not in theirs:
        return False
    parent, _, last = group.rpartition("/")
    is_attribute = not parent or parent in ours
    kinds = {_COUNTED.sub("", ours[group]), _COUNTED.sub("", theirs[group])}
    return len(kinds) == 1 and (is_attribute or kinds == {_COUNTED.sub("", last)})
