"""Finds tensors that no variable takes for variables without one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from runner.mapping.layouts import ways
from runner.mapping.module_fitting import ModuleFitter, Taken
from runner.mapping.modules import BIAS, RECURRENT, ROLES, WEIGHT, Leaf, Module
from runner.mapping.names import tokens

_KNOWN = frozenset(ROLES.values())
# How a table of positions is cut that begins behind two rows.
_PADDED = "[2:]"


def leftovers(
    variables: Sequence[Module],
    tensors: Sequence[Module],
    fitter: ModuleFitter,
    *,
    taken: Mapping[str, Sequence[str]],
    pending: Collection[str],
    constants: Collection[str],
) -> tuple[dict[str, Taken], dict[str, tuple[Taken, ...]]]:
    """Returns what variables without a tensor take, and what others could be: free tensors.

    A bias takes one that lies beside or above its kernel under another name, where no other bias
    could be meant: `attn.bias` and `attn.proj.weight`, `b_1` and `W_1`. A table of positions takes
    one with two more rows, as RoBERTa's and BART's begin behind the padding.

    Args:
      variables: the model's modules.
      tensors: the file's modules.
      fitter: tells how a variable takes a tensor.
      taken: variable -> the tensors that it takes or may take.
      pending: the variables without a tensor.
      constants: those among them for which a constant would stand.
    """
    used = {name for names in taken.values() for name in names}
    free = [
        (leaf, role)
        for module in tensors
        for leaf, role in _roles(module)
        if leaf.name not in used and not leaf.cut
    ]
    options: dict[str, tuple[Taken, ...]] = {}
    kernels: dict[str, str] = {}
    for module in variables:
        for role, leaf in module.leaves.items():
            some = tuple(_fitting(leaf, role, free, fitter)) if leaf.name in pending else ()
            if some and (leaf.name in constants or RECURRENT not in module.leaves):
                options[leaf.name] = some
                weight = module.leaves.get(WEIGHT)
                names = taken.get(weight.name, ()) if weight and role == BIAS else ()
                kernels[leaf.name] = names[0] if len(names) == 1 else ""
    near = {name: _nearest(name, kernels[name], some) for name, some in options.items()}
    wanted = Counter(one.tensors for several in near.values() for one in several)
    taken_now = {
        name: some[0] for name, some in near.items() if len(some) == 1 == wanted[some[0].tensors]
    }
    return taken_now, {name: some for name, some in options.items() if name not in taken_now}


def _roles(module: Module) -> Iterator[tuple[Leaf, str]]:
    """Yields the leaves of a module with their roles; empty where words say nothing."""
    for role, leaf in module.leaves.items():
        is_said = len(module.leaves) > 1 and role in _KNOWN
        yield leaf, ROLES.get(leaf.word, role if is_said else "")


def _fitting(
    variable: Leaf, role: str, free: Sequence[tuple[Leaf, str]], fitter: ModuleFitter
) -> Iterator[Taken]:
    for tensor, other in free:
        is_other = other and role in _KNOWN and role != other
        if is_other:
            continue
        if whole := fitter.take(variable, tensor):
            yield whole
        for way in ways(variable, tensor.shape):
            if way.cut:
                yield Taken((tensor.name,), way.cut, way.step)


def _nearest(variable: str, kernel: str, options: Sequence[Taken]) -> tuple[Taken, ...]:
    """Returns the options closest by name: to a kernel, or to a table of positions."""
    ranked = [
        (
            _shared(variable, option.tensors[0])
            if option.cut == _PADDED
            else _nearness(kernel, option.tensors[0]),
            option,
        )
        for option in options
    ]
    best = max((rank for rank, _ in ranked if rank), default=None)
    return tuple(option for rank, option in ranked if rank and rank == best)


def _shared(variable: str, tensor: str) -> tuple[int, int] | None:
    words = {*tokens(variable)} & {*tokens(tensor)}
    return (0, len(words)) if "position" in words else None


def _nearness(kernel: str, bias: str) -> tuple[int, int] | None:
    (*folders, last), (*around, end) = (re.split(r"[./]", name) for name in (kernel, bias))
    if not kernel or folders[: len(around)] != around:
        return None
    # `W_1` and `b_1` share what is behind their role.
    mine, theirs = ({*tokens(name)} for name in (last, end))
    theirs -= {*tokens(end.partition("_")[0])}
    if around == folders and theirs and not theirs <= mine:
        return None
    return len(around), len(theirs & mine)
