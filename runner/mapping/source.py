"""A checkpoint's tensors as values of variables, and what its modules computed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.mapping.layouts import Shape, Variable
from runner.mapping.module_fitting import Taken
from runner.mapping.modules import Leaf, Module, group
from runner.proof.reference import Recent, Reference
from runner.proof.source_modules import named_as_tensors
from runner.rules.expressions import names_in, parse
from runner.rules.named_conversions import expanded
from runner.rules.source_tensors import SourceTensor
from runner.rules.steps import build_source_tensor
from runner.rules.target import ConvertedVariable

# One layer and direction of a recurrent network, whose module in PyTorch holds them all.
_RECURRENT = re.compile(r"(.*?)[./]?l(\d+)_(?:forward|backward)")


class RecordedCheckpoint:
    """A checkpoint's tensors in modules, and the records of these.

    Attributes:
      tensors: name -> shape of all tensors that may be weights.
      modules: the modules, in the order of computation where that is recorded.
      module_of: tensor -> the name of its module.
      weight_norms: (module, lengths, kernel) of the pairs that may be weight norm's.
      beside: tensor -> the tensors of its module, itself included.
      outlines: module of the source -> an array of the shape of what it computed, floats alone.
      record: returns what a module computed.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        tensors: Mapping[str, Shape],
        reference: Reference,
    ) -> None:
        self._spec = reader.spec()
        self.tensors = tensors
        self.outlines = {n: a for n, a in reference.outlines.items() if a.dtype.kind == "f"}
        self.record = reference.activations.__getitem__
        self._tensor = Recent(lambda name: np.asarray(next(iter(reader.read([name])))[1]))
        modules = group(tensors)
        places = {name: at for at, name in enumerate(self.outlines)}
        bases = {module.name: _base(module.name) for module in modules}
        around = {part for base in bases.values() for part in _around(base)}
        spelled = {
            name: known for known, name in named_as_tensors([*self.outlines], around).items()
        }
        deepest = _deepest(modules)
        self._records = {
            name: () if name in deepest else _records_of(base, spelled, self.outlines)
            for name, base in bases.items()
        }
        self._exact = {name for name, base in bases.items() if spelled.get(base) in self.outlines}
        # What holds parameters beside other modules computes more than a layer with these.
        containers = {one for base in bases.values() for one in _around(base)[1:]}
        self._exact -= {*deepest, *(name for name, base in bases.items() if base in containers)}
        first = {
            name: min(places[record] for record in records)
            for name, records in self._records.items()
            if records
        }
        modules.sort(key=lambda module: (first.get(module.name, -1), module.position))
        self.modules: Sequence[Module] = modules
        self.place = {module.name: at for at, module in enumerate(modules)}
        self.module_of = {
            leaf.name: module.name for module in modules for leaf in module.leaves.values()
        }
        # Not by `module_of`: parameters of unknown roles are modules of one, which share a name.
        self.beside = {
            leaf.name: frozenset(other.name for other in module.leaves.values())
            for module in modules
            for leaf in module.leaves.values()
        }
        self.weight_norms = [*_weight_norms(modules)]

    def modules_of(self, tensors: Iterable[str]) -> tuple[str, ...]:
        """Returns the modules of tensors; one that names propose may have none."""
        known = (self.module_of[name] for name in tensors if name in self.module_of)
        return tuple(dict.fromkeys(known))

    def records_of(self, modules: Iterable[str]) -> list[str]:
        """Returns the records of modules, their own ones or those around them."""
        return [record for module in modules for record in self._records.get(module, ())]

    def has_record(self, modules: Iterable[str]) -> bool:
        """Whether each of the modules has a record of its own."""
        return all(module in self._exact for module in modules)

    def distance(self, modules: Iterable[str], others: Iterable[str]) -> int:
        """Returns how far modules are from others in the order of computation."""
        here = max((self.place[module] for module in others), default=0)
        return max((abs(self.place[module] - here) for module in modules), default=0)

    def value(self, variable: Variable, taken: Taken) -> NDArray[Any]:
        """Returns the value that a rule would give a variable.

        Raises:
          ValueError: when the tensors do not fit.
        """
        source_tensor, names = self._source_tensor(variable, taken)
        value = source_tensor.convert([self._tensor(name) for name in names])
        if value.size != np.prod(variable.shape):
            raise ValueError(f"{taken.expression()} has the shape {[*value.shape]}")
        return value.reshape(variable.shape)

    def can_make(self, variable: Variable, taken: Taken) -> bool:
        """Returns whether a rule can make a variable's value of what it takes.

        Not every step makes one of the two tensors of weight norm.
        """
        try:
            self._source_tensor(variable, taken)
        except ValueError:
            return False
        return True

    def _source_tensor(self, variable: Variable, taken: Taken) -> tuple[SourceTensor, list[str]]:
        """Returns what makes a variable's value, and the tensors that it reads."""
        target = ConvertedVariable(
            variable.name, variable.shape, layer=variable.layer, axes=variable.axes
        )
        expression = expanded(parse(taken.expression()), target, self._has)
        specs = [self._spec.find(name) for name in names_in(expression)]
        known = [spec for spec in specs if spec]
        if len(known) < len(specs):
            raise ValueError(f"the checkpoint has not all tensors of {taken.expression()}")
        source_tensor = build_source_tensor(expression, "", target, iter(known))
        return source_tensor, [spec.name for spec in known]

    def _has(self, name: str) -> bool:
        return self._spec.find(name) is not None


def _weight_norms(modules: Sequence[Module]) -> Iterator[tuple[str, Leaf, Leaf]]:
    leaves: dict[str, list[Leaf]] = {}
    for module in modules:
        leaves.setdefault(module.name, []).extend(module.leaves.values())
    for name, some in leaves.items():
        for length, kernel in itertools.permutations(some, 2):
            sizes = [*zip(length.shape, kernel.shape, strict=False)]
            along = [pair for pair in sizes if pair[0] > 1]
            # One axis of the kernel, and 1 for the others.
            is_length = len(length.shape) == len(kernel.shape) and len(along) == 1
            if is_length and along[0][0] == along[0][1] < math.prod(kernel.shape):
                yield name, length, kernel


def _base(name: str) -> str:
    """Returns a module's name as PyTorch has it, without a separator at its end."""
    recurrent = _RECURRENT.fullmatch(name.rstrip("./"))
    return recurrent[1] if recurrent else name.rstrip("./")


def _around(base: str) -> list[str]:
    """Returns the names of a module and of the modules around it."""
    return [base, *(base[: match.start()] for match in re.finditer(r"[./]", base))]


def _deepest(modules: Sequence[Module]) -> set[str]:
    """Returns the layers of recurrent networks that are not the last: the record is the last's."""
    numbers = {
        module.name: (match[1], int(match[2]))
        for module in modules
        if (match := _RECURRENT.fullmatch(module.name.rstrip("./")))
    }
    last: dict[str, int] = {}
    for base, number in numbers.values():
        last[base] = max(number, last.get(base, 0))
    return {name for name, (base, number) in numbers.items() if number < last[base]}


def _records_of(
    base: str, spelled: Mapping[str, str], records: Mapping[str, object]
) -> tuple[str, ...]:
    """Returns the records of a module, of those within it, or else of the nearest around it."""
    for part in sorted(_around(base), key=len, reverse=True):
        record = spelled.get(part, part)
        within = tuple(
            name for name in records if name == record or (part and name.startswith(f"{record}."))
        )
        if record in records:
            return (record,)
        if part == base and within:
            return within
    return ()
