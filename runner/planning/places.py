"""Identifies the tensors of a Keras file by where its layers are in the model that was saved.

A name that a program gives identifies a layer. A name that Keras counts, `dense_3`, says only how
many layers were made before, so such layers are identified by their places, as `load_weights` does.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner.checkpoints.reader import CheckpointSpec

_COUNTED = re.compile(r"_\d+$")


@dataclass(frozen=True)
class WeightsLayout:
    """The groups of a weights file, without its optimizer's.

    Attributes:
      layers: group of a layer, e.g. `cnn/layers/conv2d` -> the layer's name, e.g. `conv1`; without
        the model itself.
      variables: group -> number -> the variable's name, or of a file the tensor's; for groups that
        have any.
      automatic: the names of layers that Keras has counted, or could have.
      trainable: for each layer that Keras defines, and each other layer's own, the variables that
        train unless it is frozen, in the model's order.
      order: all variables, in the model's order.
      narrow: the variables, or tensors, of types of 8 bits, as quantized layers have them.
    """

    layers: Mapping[str, str]
    variables: Mapping[str, Mapping[str, str]]
    automatic: frozenset[str] = frozenset()
    trainable: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()
    narrow: frozenset[str] = frozenset()
    _children: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def path(self, group: str) -> tuple[str, ...]:
        """Returns the names of the layers around a group, outermost first."""
        return tuple(self.layers[prefix] for prefix in _prefixes(group) if prefix in self.layers)

    def numbers(self, group: str) -> dict[str, bool]:
        """Returns the numbers of a group's variables, and whether they are narrow."""
        held = self.variables.get(group, {})
        return {number: name in self.narrow for number, name in held.items()}

    def scope(self, group: str) -> str:
        """Returns how the names of a layer's variables begin."""
        return "".join(f"{name}/" for name in self.path(group))

    def children(self, group: str) -> tuple[str, ...]:
        """Returns the groups of the layers, and of variables in no layer, directly in a layer."""
        if not self._children:
            children: dict[str, list[str]] = {}
            for place in dict.fromkeys((*self.layers, *self.variables)):
                around = [prefix for prefix in _prefixes(place)[:-1] if prefix in self.layers]
                if place:
                    children.setdefault(around[-1] if around else "", []).append(place)
            self._children.update({key: tuple(value) for key, value in children.items()})
            self._children.setdefault("", ())
        return self._children.get(group, ())

    def names_in(self, group: str) -> Iterator[str]:
        """Yields the variables, or tensors, in a layer and the layers within it."""
        yield from self.variables.get(group, {}).values()
        for child in self.children(group):
            yield from self.names_in(child)

    def is_automatic(self, group: str, stems: frozenset[str]) -> bool:
        """Whether Keras may have counted the name of a layer, of whose class there may be a stem.

        A layer in a list is in a group that is named after its class.
        """
        name = self.layers.get(group, "")
        stem = _COUNTED.sub("", name)
        return bool(name) and (stem in stems or stem == list_class(group, self.layers))


def list_class(group: str, layers: Mapping[str, str]) -> str | None:
    """Returns the class of a layer in a list, in snake case; None if an attribute holds it."""
    parent, _, last = group.rpartition("/")
    return None if not parent or parent in layers else _COUNTED.sub("", last)


class Places:
    """Finds the tensors of a weights file for the variables of a model.

    Args:
      model: the layout of the model.
      file: the layout of the file, with the names of tensors as variables.
    """

    def __init__(self, model: WeightsLayout, file: WeightsLayout) -> None:
        self.model, self.file = model, file
        self._stems = _stems(model)
        self._pairs: dict[tuple[str, str], dict[str, str]] = {}
        self._whole: dict[tuple[str, str], bool] = {}
        self._groups = {
            name: group for group, held in model.variables.items() for name in held.values()
        }
        self._scopes: dict[str, list[str]] = {}
        for group in ("", *file.layers):
            self._scopes.setdefault(file.scope(group), []).append(group)

    def place(self, variable: str, name: str) -> str | None:
        """Returns the tensor that is `name` in the file for a variable of the model.

        Returns None where the names in `name` tell; an empty string where they are no evidence, as
        Keras has counted them, and the places of layers leave it open.
        """
        inherited = _common_end(variable, name)
        is_counted = not self.model.automatic.isdisjoint(inherited)
        if not is_counted and name != variable:
            return None
        tensors = self._find(variable, name)
        if len(tensors) == 1:
            return tensors[0]
        return "" if is_counted else None

    def of_parts(self) -> dict[str, str]:
        """Returns variable -> tensor where the file is one of a part of the model, and parts agree.

        The file of a part has names without that part's.
        """
        tensors: dict[str, set[str]] = {}
        for part in self.model.layers:
            scope = self.model.scope(part)
            if self.model.children(part):
                for name, tensor in self.within(part, "").items():
                    if self._agree(part, "", name):
                        tensors.setdefault(name.removeprefix(scope), set()).add(tensor)
        return {name: several.pop() for name, several in tensors.items() if len(several) == 1}

    def group(self, variable: str) -> str:
        """Returns the group in which the model's file would hold a variable."""
        return self._groups[variable]

    def _find(self, variable: str, name: str) -> tuple[str, ...]:
        """Returns the tensors that a variable may be, by the places of layers."""
        if tensor := self.within("", "").get(variable) if name == variable else None:
            return (tensor,)
        group, inherited = self._groups.get(variable, ""), _common_end(variable, name)
        parts = [part for part in _prefixes(group) if part in self.model.layers]
        tensors = {
            tensor
            for part in ("", *parts)
            for scope in (self.model.scope(part),)
            if (rest := variable.removeprefix(scope)) and name.endswith(rest)
            # A counted name that both have beyond that says nothing of the layer.
            if self.model.automatic.isdisjoint(inherited[rest.count("/") + 1 :])
            for place in self._scopes.get(name[: len(name) - len(rest)], ())
            if (part or place) and self._agree(part, place, variable)
            if (tensor := self.within(part, place).get(variable)) is not None
        }
        return tuple(sorted(tensors))

    def within(self, part: str, place: str) -> dict[str, str]:
        """Returns variable -> tensor for a layer of the model and a layer of the file."""
        pairs = self._pairs.get((part, place))
        if pairs is None:
            groups = dict(self._paired(part, place))
            model, file = self.model.variables, self.file.variables
            pairs = self._pairs[part, place] = {
                name: file[groups[group]][number]
                for group in groups
                if self.model.numbers(group) == self.file.numbers(groups[group])
                for number, name in model.get(group, {}).items()
            }
        return pairs

    def _agree(self, part: str, place: str, variable: str) -> bool:
        """Whether two layers hold variables in the same places, or the names in them are given."""
        inner = self.model.path(self._groups[variable])[len(self.model.path(part)) :]
        return self.model.automatic.isdisjoint(inner) or self._are_whole(part, place)

    def _are_whole(self, part: str, place: str) -> bool:
        """Whether all variables in a layer of the model and in one of the file are paired."""
        if (part, place) not in self._whole:
            pairs = self.within(part, place)
            ours, theirs = {*self.model.names_in(part)}, {*self.file.names_in(place)}
            is_whole = pairs.keys() == ours and {*pairs.values()} == theirs
            self._whole[part, place] = is_whole
        return self._whole[part, place]

    def _paired(self, part: str, place: str) -> Iterator[tuple[str, str]]:
        """Yields the groups in two layers that hold the same variables, and the layers' own."""
        yield part, place
        ours, theirs = self.model.children(part), self.file.children(place)
        named = Counter(self.file.layers.get(child, "") for child in theirs)
        by_name = {self.file.layers.get(child, ""): child for child in theirs}
        lists = [self._in_lists(layout, at) for layout, at in self._sides(part, place)]
        for child in ours:
            name, relative = self.model.layers.get(child, ""), _relative(child, part)
            at = f"{place}/{relative}" if place else relative
            if name in self.model.automatic or not name:
                kind = (relative.rpartition("/")[0], list_class(child, self.model.layers))
                is_alike = kind[1] is None or lists[0].get(kind) == lists[1].get(kind)
                is_alike = is_alike and at in theirs and self._is_like(child, at)
                if is_alike and self._are_whole(child, at):
                    yield from self._paired(child, at)
            elif named[name] == 1:
                yield from self._paired(child, by_name[name])
            elif not named[name] and at in theirs and self._is_attribute(child, at):
                yield from self._paired(child, at)

    def _is_attribute(self, child: str, at: str) -> bool:
        """Whether two layers in an attribute have names that differ in a number at the end alone.

        The attribute is a place too.
        """
        ours, theirs = self.model.layers[child], self.file.layers.get(at, "")
        is_listed = list_class(child, self.model.layers) is not None
        return not is_listed and _COUNTED.sub("", ours) == _COUNTED.sub("", theirs)

    def _sides(self, part: str, place: str) -> tuple[tuple[WeightsLayout, str], ...]:
        return (self.model, part), (self.file, place)

    def _is_like(self, child: str, at: str) -> bool:
        """Whether two layers have names of one stem, which Keras has counted; or none."""
        ours, theirs = self.model.layers.get(child, ""), self.file.layers.get(at, "")
        if not ours or not theirs:
            return ours == theirs
        is_automatic = self.file.is_automatic(at, self._stems)
        return is_automatic and _COUNTED.sub("", ours) == _COUNTED.sub("", theirs)

    def _in_lists(
        self, layout: WeightsLayout, group: str
    ) -> dict[tuple[str, str | None], frozenset[str]]:
        """Returns list and class -> where in it the layers with counted names are."""
        places: dict[tuple[str, str | None], set[str]] = {}
        for child in layout.children(group):
            relative = _relative(child, group)
            kind = (relative.rpartition("/")[0], list_class(child, layout.layers))
            is_ours = layout is self.model
            name = layout.layers.get(child, "")
            if name in layout.automatic if is_ours else layout.is_automatic(child, self._stems):
                places.setdefault(kind, set()).add(relative)
        return {kind: frozenset(held) for kind, held in places.items()}


class Ordinals:
    """Finds the tensors of a file that has the names of variables, and their order in its model.

    Of the layers with names that Keras has counted, the first one of a class is the first, if there
    are as many of it.

    Args:
      model: the layout of the model.
      spec: the file.
    """

    def __init__(self, model: WeightsLayout, spec: CheckpointSpec) -> None:
        self._model, self._spec, self._stems = model, spec, _stems(model)
        self._grouped: dict[tuple[bool, str], dict[str, list[str]]] = {}

    def place(self, variable: str, name: str) -> str | None:
        """See `Places.place`."""
        inherited = "/".join(reversed(_common_end(variable, name)))
        key = self._key(inherited)
        if self._model.automatic.isdisjoint(inherited.split("/")):
            return None
        ours = self._alike(variable.removesuffix(inherited), of_file=False).get(key, [])
        theirs = self._alike(name.removesuffix(inherited), of_file=True).get(key, [])
        paths = {self._spec.order[name][0] for name in theirs}
        if not theirs:
            return None
        if len(ours) != len(theirs) or len(paths) > 1:
            return ""
        tensor = self._spec.find(theirs[ours.index(variable)])
        return tensor.name if tensor else ""

    def _alike(self, beginning: str, *, of_file: bool) -> dict[str, list[str]]:
        """Returns names without numbers, after a beginning -> the names in their order."""
        grouped = self._grouped.get((of_file, beginning))
        if grouped is None:
            grouped = self._grouped[of_file, beginning] = {}
            order = self._spec.order
            names = sorted(order, key=lambda name: order[name]) if of_file else self._model.order
            for name in names:
                if name.startswith(beginning):
                    grouped.setdefault(self._key(name.removeprefix(beginning)), []).append(name)
        return grouped

    def _key(self, name: str) -> str:
        """Returns a name in which parts that Keras may have counted have no number."""
        parts = ((part, _COUNTED.sub("", part)) for part in name.split("/"))
        return "/".join(stem if stem in self._stems else part for part, stem in parts)


def _stems(model: WeightsLayout) -> frozenset[str]:
    return frozenset(_COUNTED.sub("", name) for name in model.automatic)


def _common_end(variable: str, name: str) -> list[str]:
    """Returns the parts at the end of two names that are the same."""
    pairs = zip(reversed(variable.split("/")), reversed(name.split("/")), strict=False)
    return [part for part, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _relative(group: str, around: str) -> str:
    return group.removeprefix(f"{around}/") if around else group


def _prefixes(group: str) -> list[str]:
    """Returns `a`, `a/b` and `a/b/c` for `a/b/c`."""
    return list(itertools.accumulate(group.split("/"), "{}/{}".format)) if group else []
