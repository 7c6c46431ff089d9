"""The pairs of variables and tensors, certain or ambiguous, of two lists of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.mapping.assignment import Assignment, assign
from runner.mapping.certainty import Judgement, judge
from runner.mapping.layouts import Shape
from runner.mapping.modules import WEIGHT, Fitter, Fitting, Module, Taken, group, thirds
from runner.mapping.names import hinted, tokens


@dataclass(frozen=True)
class Pair:
    """What a variable takes, and how sure that is.

    Attributes:
      variable: its name.
      taken: the tensors and steps.
      reasons: the evidence.
      candidates: what it could take as well as `taken`, with that; empty for a certain pair.
    """

    variable: str
    taken: Taken
    reasons: tuple[str, ...]
    candidates: tuple[Taken, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether every exchange costs evidence."""
        return not self.candidates


@dataclass(frozen=True)
class Correspondence:
    """Which tensor is which variable.

    Attributes:
      pairs: variable -> pair.
      constants: variable -> the constant that stands for a bias or a scale that the file lacks.
      left: variables without a tensor.
      unused: tensors that no variable takes.
      layout: the decision on the layout of kernels, with its reason.
    """

    pairs: Mapping[str, Pair]
    constants: Mapping[str, str]
    left: tuple[str, ...]
    unused: tuple[str, ...]
    layout: str


def correspond(
    variables: Mapping[str, Shape],
    tensors: Mapping[str, Shape],
    *,
    layers: Mapping[str, str] | None = None,
    ordered: bool = False,
    hints: Mapping[str, str] | None = None,
) -> Correspondence:
    """Finds which tensors of a checkpoint are which variables of a model.

    Args:
      variables: name -> shape, in the model's order.
      tensors: name -> shape of the floating tensors, in the file's order.
      layers: variable -> class of its Keras layer, if known.
      ordered: whether the file's order is that of its model's definition.
      hints: words of the file -> words of the model.
    """
    spelled = {
        hinted(name, hints or {}): name for name in tensors if not _is_slot(name, tensors)
    }
    shapes = {new: tensors[name] for new, name in spelled.items() if tensors[name]}
    if not ordered:
        shapes = dict(sorted(shapes.items(), key=lambda item: _natural(item[0])))
    mine = group({name: shape for name, shape in variables.items() if shape}, layers or {})
    theirs = thirds(group(shapes, {}), mine)
    fitter = Fitter(mine, theirs)
    assignment, judgements = judge(assign(mine, theirs, fitter, ordered=ordered))
    pairs: dict[str, Pair] = {}
    for row, column in assignment.pairs.items():
        for variable in assignment.fittings[row, column].by_variable:
            pairs[variable] = _pair(assignment, judgements[row], row, variable)
    constants = {
        variable: "ones()" if role == WEIGHT else "zeros()"
        for row, column in assignment.pairs.items()
        if not judgements[row].candidates
        for role, variable in _lacking(mine[row], assignment.fittings[row, column])
    }
    used = {name for pair in pairs.values() for name in pair.taken.tensors}
    return Correspondence(
        {name: pairs[name] for name in variables if name in pairs},
        constants,
        tuple(name for name in variables if name not in pairs and name not in constants),
        tuple(name for new, name in spelled.items() if new not in used),
        f"{fitter.layout.value if fitter.layout else 'undecided'}: {fitter.reason}",
    )


def _lacking(module: Module, fitting: Fitting) -> list[tuple[str, str]]:
    """Returns the role and name of the variables for which a module's tensors have none."""
    leaves = module.leaves.items()
    return [(role, leaf.name) for role, leaf in leaves if leaf.name in fitting.lacking]


def _is_slot(name: str, tensors: Mapping[str, object]) -> bool:
    """Returns whether a name extends another tensor's, as `kernel/Adam` does."""
    parts = name.split("/")
    return any("/".join(parts[:count]) in tensors for count in range(1, len(parts)))


def _natural(name: str) -> tuple[tuple[bool, str, int], ...]:
    return tuple(
        (False, "", token) if isinstance(token, int) else (True, token, 0)
        for token in tokens(name)
    )


def _pair(assignment: Assignment, judgement: Judgement, row: int, variable: str) -> Pair:
    taken = assignment.fittings[row, assignment.pairs[row]].by_variable[variable]
    columns = judgement.candidates or (assignment.pairs[row],)
    candidates: dict[tuple[object, ...], Taken] = {}
    for column in columns:
        option = assignment.fittings[row, column].by_variable.get(variable)
        if option is not None:
            for name in option.others or option.tensors:
                names = (name,) if option.others else option.tensors
                candidates[names, option.part] = replace(option, tensors=names, others=())
    sure = len(candidates) < 2 and not judgement.candidates
    return Pair(variable, taken, judgement.reasons, () if sure else tuple(candidates.values()))
