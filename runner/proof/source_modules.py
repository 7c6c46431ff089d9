"""Finds the layers of a model that hold the tensors of a module of the source, by the plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

_SEPARATOR = re.compile(r"[./]")


def of_module(name: str) -> str:
    """Returns a tensor's name beside the others of its module.

    Flax keeps the statistics of `params/BatchNorm_0` in `batch_stats/BatchNorm_0`.
    """
    return re.sub(r"^batch_stats(?=/)", "params", name)


@dataclass(frozen=True)
class Counterpart:
    """The layers that a module's tensors went to.

    Attributes:
      layers: the layers, in the model's order.
      is_whole: whether each of them has all tensors of the module; otherwise each has a part, such
        as one layer of a stacked LSTM.
    """

    layers: tuple[str, ...]
    is_whole: bool


def counterparts(
    modules: Iterable[str],
    tensors: Mapping[str, Sequence[Collection[str]]],
    layers: Mapping[str, Collection[str]],
) -> dict[str, Counterpart]:
    """Returns module -> the layers whose variables all come from its tensors, and hold them all.

    Several layers may hold the same, such as an LSTM and its cell. A module with tensors of its own
    that no layer holds together has the layers that hold some. Others are left out.

    Args:
      modules: the names of modules in the source. They may have a prefix that the names of tensors
        lack, such as `bert.`, or lack one.
      tensors: variable -> the names of each of its tensors.
      layers: the path of a layer -> its variables, in the model's order.
    """
    below: dict[str, set[str]] = {}
    direct: set[str] = set()
    for variable, several in tensors.items():
        around = [[path for name in names for path in _around(name)] for names in several]
        for path in set.intersection(*map(set, around)):
            below.setdefault(path, set()).add(variable)
        direct.update(_around(name)[-1] for names in several for name in names if _around(name))
    held = {
        path: frozenset(variable for variable in variables if variable in tensors)
        for path, variables in layers.items()
    }
    named = named_as_tensors([*modules], below)
    layers_of_module = {}
    for module, name in named.items():
        variables = below.get(name, set())
        whole = [path for path, some in held.items() if some and some == variables]
        parts = [path for path, some in held.items() if some and some < variables]
        if whole or (parts and name in direct):
            layers_of_module[module] = Counterpart(tuple(whole or parts), bool(whole))
    return layers_of_module


def mixed_modules(
    modules: Collection[str],
    tensors: Mapping[str, Sequence[Collection[str]]],
    layers: Mapping[str, Collection[str]],
) -> dict[str, dict[str, list[str]]]:
    """Returns the path of a layer -> the modules that it has tensors of -> these variables.

    Layers with tensors of one module are left out.

    Such a layer has a tensor of another one, or its source splits it, as a norm and its scale. A
    variable of several tensors, such as a sum, belongs to none.

    Args:
      modules: see `counterparts`, as `tensors` and `layers`.
      tensors: variable -> the names of each of its tensors.
      layers: the path of a layer -> its variables.
    """
    parents = {
        variable: {around[-1] for name in several[0] if (around := _around(name))}
        for variable, several in tensors.items()
        if len(several) == 1
    }
    known = {name for several in parents.values() for name in several}
    named = named_as_tensors(modules, known)
    mixed = {}
    for path, variables in layers.items():
        if not all(variable in parents for variable in variables):
            continue
        of = {m: [v for v in variables if name in parents[v]] for m, name in named.items()}
        of = {module: some for module, some in of.items() if some}
        if len(of) > 1:
            mixed[path] = of
    return mixed


def _around(name: str) -> list[str]:
    """Returns the modules around a tensor, outermost first."""
    return [name[: match.start()] for match in _SEPARATOR.finditer(name)]


def named_as_tensors(modules: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Returns module -> its name in the names of tensors, with the prefix that knows the most."""
    spellings = [{module: module for module in modules}]
    for prefix in _prefixes(known):
        spellings.append({module: prefix + module for module in modules})
    for prefix in _prefixes(modules):
        spellings.append({module: module.removeprefix(prefix) for module in modules})
    return max(spellings, key=lambda names: sum(name in known for name in names.values()))


def _prefixes(names: Iterable[str]) -> set[str]:
    """Returns the first one or two parts of names, with the separator after them."""
    return {name[: match.end()] for name in names for match in [*_SEPARATOR.finditer(name)][:2]} | {
        f"{name}{separator}" for name in names for separator in "./" if name.isidentifier()
    }
