"""The ways in which tensors can be the variables of one call, by shapes and not by names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from runner.mapping import module_fitting
from runner.mapping.cuts import MOST_PARTS, Cut, cuts
from runner.mapping.layouts import Shape, Variable, ways
from runner.mapping.module_fitting import Taken, fit_recurrent
from runner.mapping.modules import BIAS, RECURRENT, ROLES, WEIGHT, Module, group
from runner.mapping.source import RecordedCheckpoint

# How many combinations of parameters are tried.
MOST_COMBINATIONS = 400
# In how many ways one module may be the variables of a call.
_MOST_OF_MODULE = 64
# What a variable takes, and the module of that.
_Option: TypeAlias = tuple[Taken, str | None]


@dataclass(frozen=True)
class Candidate:
    """Tensors that may be the variables of one call.

    Attributes:
      taken: variable -> what it takes; a constant takes no tensor.
      modules: the modules of these tensors.
      cut: the part of a fused module; None for whole tensors.
      joined: how tensors of several modules, and so their records, become one: `sum` or `concat`.
      is_named: whether names propose it.
    """

    taken: Mapping[str, Taken]
    modules: tuple[str, ...]
    cut: Cut | None = None
    joined: str = ""
    is_named: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(name for taken in self.taken.values() for name in taken.tensors)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """The variables and what they take, which tell it from others."""
        return tuple(sorted((name, taken.expression()) for name, taken in self.taken.items()))

    @property
    def expressions(self) -> tuple[str, ...]:
        """The expressions of its variables, without their names."""
        return tuple(taken.expression() for taken in self.taken.values())

    @property
    def kind(self) -> tuple[str, ...]:
        """Its layouts and cut, without names."""
        return tuple(f"{taken.cut} {taken.step}" for taken in self.taken.values())

    @property
    def family(self) -> tuple[tuple[str, ...], str, int]:
        """Identifies the fused module that parts belong to: its name, step and heads.

        The module of a bias that lies elsewhere does not count.
        """
        step = next(iter(self.taken.values())).step
        return self.modules[:1], step, self.cut.heads if self.cut else 0

    def shares(self, other: Candidate) -> bool:
        """Whether both take the same values of one tensor."""
        if not {*self.tensors} & {*other.tensors}:
            return False
        return not self.cut or not other.cut or self.cut.overlaps(other.cut)


def candidates(variables: Sequence[Variable], source: RecordedCheckpoint) -> list[Candidate]:
    """Returns the candidates for all variables of one call, in the order of computation."""
    if any(variable.leaf == "recurrent_kernel" for variable in variables):
        return _recurrent(variables, source)
    result = [c for module in source.modules for c in _of_module(variables, module)]
    result = result or [*_of_several(variables, source)]
    result += [c for module in source.modules for c in _of_fused(variables, module)]
    result += _of_weight_norm(variables, source)
    result += _sums(variables, result, source)
    return result or _of_many(variables, source)


def _sums(
    variables: Sequence[Variable], tables: Sequence[Candidate], source: RecordedCheckpoint
) -> Iterator[Candidate]:
    """Yields tables with a row added that all of their rows lack, as one of token types."""
    if len(variables) != 1 or not variables[0].is_table:
        return
    rows = [
        (leaf.name, module.name)
        for module in source.modules
        for leaf in module.leaves.values()
        if leaf.shape == (1, variables[0].shape[-1])
    ]
    for table, (row, module) in itertools.product(tables, rows):
        taken = table.taken[variables[0].name]
        both = replace(taken, tensors=(*taken.tensors, row))
        modules = (*table.modules, module)
        yield Candidate({variables[0].name: both}, modules, joined="sum")


def _of_several(variables: Sequence[Variable], source: RecordedCheckpoint) -> Iterator[Candidate]:
    """Yields kernels that a model fuses, such as query, key and value, from modules that follow.

    All orders are yielded, for names may lie.
    """
    roles = {_role(variable): variable for variable in variables}
    kernel = roles.get(WEIGHT)
    if kernel is None or not {*roles} <= {WEIGHT, BIAS} or len(roles) < len(variables):
        return
    if kernel.is_table or "Conv" in kernel.layer or len(kernel.shape) < 2:
        return
    matrices = [
        module
        for module in source.modules
        if {*module.leaves} == {*roles} and len(module.leaves[WEIGHT].shape) == 2
    ]
    for axis, count in itertools.product((0, 1), (2, 3)):
        for at in range(len(matrices)):
            for rest in itertools.combinations(matrices[at + 1 : at + 2 + count], count - 1):
                for modules in itertools.permutations((matrices[at], *rest)):
                    yield from _fused_of(modules, roles, axis)


def _fused_of(
    modules: Sequence[Module], roles: Mapping[str, Variable], axis: int
) -> Iterator[Candidate]:
    """Yields the ways in which modules, one after the other along an axis, are one layer."""
    shapes = [module.leaves[WEIGHT].shape for module in modules]
    if len({shape[1 - axis] for shape in shapes}) > 1:
        return
    whole = [0, 0]
    whole[axis], whole[1 - axis] = sum(shape[axis] for shape in shapes), shapes[0][1 - axis]
    if BIAS in roles and math.prod(roles[BIAS].shape) != whole[axis]:
        return
    for _, step, _ in ways(roles[WEIGHT], tuple(whole)):
        # The outputs are first in the file and last in the model, or last in both.
        if step.startswith("linear") == (axis == 0):
            taken = {}
            for role, variable in roles.items():
                tensors = tuple(module.leaves[role].name for module in modules)
                steps = step if role == WEIGHT else "" if len(variable.shape) == 1 else "reshape"
                along = axis if role == WEIGHT else 0
                taken[variable.name] = Taken(tensors, step=steps, function="concat", axis=along)
            yield Candidate(taken, tuple(module.name for module in modules), joined="concat")


def _role(variable: Variable) -> str:
    if variable.leaf == "recurrent_kernel":
        return RECURRENT
    return ROLES.get(variable.leaf, variable.leaf)


def _of_module(variables: Sequence[Variable], module: Module) -> Iterator[Candidate]:
    """Yields the ways in which one module gives all variables their tensors."""
    free, options = dict(module.leaves), dict[str, list[Taken]]()
    unnamed = []
    for variable in variables:
        # Other words are names, which may be exchanged.
        leaf = free.get(_role(variable)) if _role(variable) in ROLES.values() else None
        if leaf is None:
            unnamed.append(variable)
            continue
        taken = [Taken((leaf.name,), *way[:2]) for way in ways(variable, leaf.shape)]
        if not taken:
            return
        options[variable.name] = taken
        del free[_role(variable)]
    for variable in unnamed:
        taken = [
            Taken((leaf.name,), *way[:2])
            for leaf in free.values()
            for way in ways(variable, leaf.shape)
        ]
        missing = constant(variable)
        if taken:
            options[variable.name] = taken
        elif missing is None:
            return
        else:
            options[variable.name] = [missing]
    names = [variable.name for variable in variables]
    leaves = module.leaves.values()
    matrices = {leaf.name for leaf in leaves if sum(size > 1 for size in leaf.shape) > 1}
    yield from itertools.islice(
        (
            Candidate(dict(zip(names, several, strict=True)), (module.name,))
            for several in itertools.product(*(options[name] for name in names))
            for used in [[taken.tensors[0] for taken in several if taken.tensors]]
            if used and len({*used}) == len(used) and matrices <= {*used}
        ),
        _MOST_OF_MODULE,
    )


def constant(variable: Variable) -> Taken | None:
    """Returns what stands for a bias or a scale that a module lacks."""
    step = module_fitting.constant(_role(variable), variable.shape)
    return Taken((), step=step) if step else None


def _of_fused(variables: Sequence[Variable], module: Module) -> Iterator[Candidate]:
    """Yields the parts of a module that computes several layers at once."""
    kernels = [v for v in variables if len(v.shape) > 1 and _role(v) != BIAS]
    biases = [v for v in variables if _role(v) == BIAS]
    weight, bias = module.leaves.get(WEIGHT), module.leaves.get(BIAS)
    if weight is None or len(kernels) != 1 or len(variables) > len(kernels) + len(biases[:1]):
        return
    kernel, shape = kernels[0], weight.shape
    if len(shape) not in (2, 3) or kernel.is_table or "Conv" in kernel.layer:
        return
    for axis, whole in enumerate(shape):
        rest = math.prod(shape) // whole
        part = math.prod(kernel.shape) // rest if math.prod(kernel.shape) % rest == 0 else 0
        if not 1 < part < whole or whole // part > MOST_PARTS:
            continue
        if bias and (axis not in (0, len(shape) - 1) or bias.shape != (whole,)):
            continue
        if biases and math.prod(biases[0].shape) != part:
            continue
        shapes = [kernel.shape, *(v.shape for v in biases)]
        for cut in cuts(whole, part, shapes if axis == 0 and len(shape) == 2 else ()):
            cut_shape = (*shape[:axis], part, *shape[axis + 1 :])
            for inner, step, _ in ways(kernel, cut_shape):
                taken = {kernel.name: Taken((weight.name,), cut.steps(shape, axis), step)}
                if biases and bias:
                    end = "" if len(biases[0].shape) == 1 else "reshape"
                    steps = cut.steps(bias.shape, 0)
                    taken[biases[0].name] = Taken((bias.name,), steps, end)
                elif biases:
                    taken[biases[0].name] = Taken((), step="zeros()")
                if not inner:
                    yield Candidate(taken, (module.name,), cut)


def _of_weight_norm(
    variables: Sequence[Variable], source: RecordedCheckpoint
) -> Iterator[Candidate]:
    """Yields kernels that weight norm makes of two tensors; a bias is all that its module has."""
    roles = {_role(variable): variable for variable in variables}
    if len(roles) != len(variables) or not {WEIGHT} <= {*roles} <= {WEIGHT, BIAS}:
        return
    biases: list[tuple[dict[str, Taken], tuple[str, ...]]] = [({}, ())]
    if bias := roles.get(BIAS):
        biases = [
            ({bias.name: Taken((leaf.name,))}, (module.name,))
            for module in source.modules
            for leaf in module.leaves.values()
            if len(module.leaves) == 1 and leaf.shape == bias.shape
        ]
    for module, length, kernel in source.weight_norms:
        steps = [step for cut, step, _ in ways(roles[WEIGHT], kernel.shape) if not cut]
        for step, (taken, modules) in itertools.product(steps, biases):
            both = Taken((length.name, kernel.name), step=step, function="weight_norm")
            yield Candidate({roles[WEIGHT].name: both, **taken}, (module, *modules))


def _recurrent(variables: Sequence[Variable], source: RecordedCheckpoint) -> list[Candidate]:
    """Returns the candidates of a recurrent layer, or of one in both directions."""
    cells = group({variable.name: variable.shape for variable in variables})
    theirs = [module for module in source.modules if RECURRENT in module.leaves]
    result = []
    for modules in itertools.permutations(theirs, len(cells)):
        fitted = [fit_recurrent(*pair) for pair in zip(cells, modules, strict=True)]
        taken: dict[str, Taken] = {}
        for fitting in fitted:
            if fitting is None:
                break
            taken |= fitting.by_variable
            taken |= {name: Taken((), step=step) for name, step in fitting.constants.items()}
        else:
            result.append(Candidate(taken, tuple(module.name for module in modules)))
    return result


def _of_many(variables: Sequence[Variable], source: RecordedCheckpoint) -> list[Candidate]:
    """Returns candidates that several modules make up, or parameters without one."""
    # A constant is of no module; parameters of the whole model are of one without a name.
    options: list[list[_Option]] = []
    for variable in variables:
        several: list[_Option] = [
            (Taken((leaf.name,), *way), module.name)
            for module in source.modules
            for leaf in module.leaves.values()
            for way in (
                *((way.cut, way.step) for way in ways(variable, leaf.shape)),
                *_blocks(variable, leaf.shape),
            )
        ]
        if missing := constant(variable):
            several.append((missing, None))
        # Parameters without a record of their own first.
        several.sort(key=lambda option: option[1] is not None and source.has_record([option[1]]))
        options.append(several)
    result = []
    for some in _closest(options, source)[:MOST_COMBINATIONS]:
        taken = {v.name: t for v, (t, _) in zip(variables, some, strict=True)}
        modules = tuple(dict.fromkeys(one for _, one in some if one is not None))
        result.append(Candidate(taken, modules))
    return result


def _closest(
    options: Sequence[Sequence[_Option]], source: RecordedCheckpoint
) -> list[tuple[_Option, ...]]:
    """Returns combinations of different tensors, those close in the file before far apart.

    Every option of the first variable has a share of them.
    """
    first, *others = options
    most = max(2, MOST_COMBINATIONS // max(1, len(first)))
    width = int((50 * most) ** (1 / max(1, len(others)))) + 1
    result: list[tuple[_Option, ...]] = []

    def spread(some: Sequence[_Option]) -> int:
        places = [source.place[module] for _, module in some if module is not None]
        return max(places) - min(places) if places else 0

    for option in first:
        near = [sorted(some, key=lambda one: spread([option, one]))[:width] for some in others]
        combinations = sorted(itertools.product([option], *near), key=spread)
        apart = (s for s in combinations if are_apart([taken for taken, _ in s if taken.tensors]))
        result += itertools.islice(apart, most)
    return sorted(result, key=spread)


def are_apart(some: Sequence[Taken]) -> bool:
    """Whether variables take different tensors, or different parts of one division."""
    parts: dict[str, set[str]] = {}
    for taken in some:
        cuts = parts.setdefault(taken.tensors[0], set())
        if taken.cut in cuts:
            return False
        cuts.add(taken.cut)
    divisions = ({_PART.sub(r"\1", cut) for cut in cuts} for cuts in parts.values())
    return bool(parts) and all(len(division) == 1 for division in divisions)


# The number of a part.
_PART = re.compile(r"(split\(\d+, )\d+|(?<=\[)[\d:, ]+(?=\])")


def _blocks(variable: Variable, shape: Shape) -> Iterator[tuple[str, str]]:
    """Yields the blocks of a tensor of three axes, such as one of all experts' two kernels."""
    if len(variable.shape) != 3 or len(shape) != 3:
        return
    for axis, whole in enumerate(shape):
        rest = math.prod(shape) // whole
        part = math.prod(variable.shape) // rest
        if part * rest == math.prod(variable.shape) and 1 < part < whole and not whole % part:
            for number in range(whole // part):
                cut = Cut(number * part, part).steps(shape, axis)
                for _, step, _ in ways(variable, (*shape[:axis], part, *shape[axis + 1 :])):
                    yield cut, step
