"""The pairs of variables and tensors, certain or ambiguous, of two lists of names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from runner.mapping.certainty import ONLY, Judgement, weigh_exchanges
from runner.mapping.layouts import Shape
from runner.mapping.leftovers import leftovers
from runner.mapping.module_fitting import ModuleFitter, Taken, is_only
from runner.mapping.modules import group, thirds
from runner.mapping.names import hinted, tokens
from runner.mapping.pairing import Pairing, assign
from runner.mapping.weights import Unread, is_slot

BESIDE = "the nearest of those left"


@dataclass(frozen=True)
class Computed:
    """How values decide on the tensors of one call of a layer.

    Attributes:
      record: the module of the source that the layer's output was compared with; may be empty.
      relative: how far they are from each other, relative to the record's largest value.
      next: how far the closest other candidate is, infinite without one.
      reader: the layer that needs this choice, where the layer's output is not enough.
    """

    record: str
    relative: float
    next: float
    reader: str = ""


@dataclass(frozen=True)
class Pair:
    """The tensors that a variable takes, and how certain that is.

    Attributes:
      variable: its name.
      taken: the tensors and steps.
      reasons: the evidence.
      candidates: what it could take as well as `taken`, with that; empty for a certain pair.
      is_decided: whether values or shapes decide; otherwise names propose it.
      computed: how values decide; None where they do not.
    """

    variable: str
    taken: Taken
    reasons: tuple[str, ...]
    candidates: tuple[Taken, ...] = ()
    is_decided: bool = False
    computed: Computed | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it is the only proposal, so that there is a rule."""
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
      unread: variables on which no output depends, where a reference tells.
      undecided: variables on which the reference does not decide, or that its proof doubts; None
        without a reference.
      others: tensors that are no weights -> what they are.
      codes: tensors that keep weights from being read -> what they are.
    """

    pairs: Mapping[str, Pair]
    constants: Mapping[str, str]
    left: tuple[str, ...]
    unused: tuple[str, ...]
    layout: str
    unread: tuple[str, ...] = ()
    undecided: tuple[str, ...] | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, Unread] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        variables: Collection[str],
        tensors: Collection[str],
        *,
        pairs: Mapping[str, Pair],
        constants: Mapping[str, str],
        layout: str,
        unread: tuple[str, ...] = (),
        undecided: tuple[str, ...] | None = None,
    ) -> Correspondence:
        """Returns a correspondence with what the pairs and constants leave, in the given orders."""
        used = {name for pair in pairs.values() for name in pair.taken.tensors}
        return cls(
            {name: pairs[name] for name in variables if name in pairs},
            constants,
            tuple(name for name in variables if name not in pairs and name not in constants),
            tuple(name for name in tensors if name not in used),
            layout,
            unread,
            undecided,
        )


def decided(correspondence: Correspondence) -> Correspondence:
    """Returns a correspondence in which variables that are open have no tensor."""
    pairs = {name: pair for name, pair in correspondence.pairs.items() if pair.is_certain}
    left = [name for name in correspondence.pairs if name not in pairs]
    return replace(correspondence, pairs=pairs, left=(*correspondence.left, *left))


def guessed(correspondence: Correspondence) -> Correspondence:
    """Returns a correspondence in which variables that are open take the nearest tensor."""
    pairs = {name: replace(pair, candidates=()) for name, pair in correspondence.pairs.items()}
    return replace(correspondence, pairs=pairs)


def doubted(correspondence: Correspondence, layers: Collection[str]) -> Correspondence:
    """Returns a correspondence that does not decide on the variables of layers."""
    known = [*correspondence.pairs, *correspondence.constants]
    open_ = {name for name in known if any(name.startswith(f"{layer}/") for layer in layers)}
    reason = "the proof doubts it"
    doubts = {
        name: replace(pair, is_decided=False, computed=None, reasons=(*pair.reasons, reason))
        for name, pair in correspondence.pairs.items()
        if name in open_
    }
    undecided = open_.union(correspondence.undecided or ())
    return replace(
        correspondence,
        pairs={**correspondence.pairs, **doubts},
        undecided=tuple(name for name in known if name in undecided),
    )


def correspond(
    variables: Mapping[str, Shape],
    tensors: Mapping[str, Shape],
    *,
    layers: Mapping[str, str] | None = None,
    ordered: bool = False,
    file_format: str = "",
    flattened: Mapping[str, Shape] | None = None,
    words: Mapping[str, str] | None = None,
    known: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Correspondence:
    """Finds which tensors of a checkpoint are which variables of a model.

    Args:
      variables: name -> shape, in the model's order.
      tensors: name -> shape of the floating tensors, in the file's order.
      layers: variable -> class of its Keras layer, if known.
      ordered: whether the file has the order of its model's definition.
      file_format: the name of the file's format, which may tell the layout of kernels.
      flattened: kernel -> (channels, height, width) of the map whose flattened values it reads.
      words: tensor -> its name in words, where the file has a number.
      known: variable -> its name, where the model's name is no evidence.
      hints: words of the file -> words of the model.
    """
    spelled = {name: hinted((words or {}).get(name, name), hints or {}) for name in tensors}
    names = [name for name, shape in tensors.items() if shape and not is_slot(name, tensors)]
    if not ordered:
        names.sort(key=lambda name: _natural(spelled[name]))
    shaped = {name: shape for name, shape in variables.items() if shape}
    mine = group(shaped, layers=layers, flattened=flattened, spelled=known)
    theirs = thirds(group({name: tensors[name] for name in names}, spelled=spelled), mine)
    fitter = ModuleFitter(mine, theirs, file_format)
    pairing, judgements = weigh_exchanges(assign(mine, theirs, fitter, ordered=ordered))
    pairs: dict[str, Pair] = {}
    constants: dict[str, str] = {}
    for row, column in pairing.pairs.items():
        fitting = pairing.fitting(row, column)
        for variable in fitting.by_variable:
            pairs[variable] = _pair(pairing, judgements[row], row, variable)
        if not judgements[row].candidates:
            constants |= fitting.constants
    lacking = {name for name in variables if name not in pairs}
    taken_by = {name: _names(pair) for name, pair in pairs.items()}
    beside, options = leftovers(
        mine, theirs, fitter, taken=taken_by, pending=lacking, constants={*constants}
    )
    pairs |= {name: Pair(name, one, (BESIDE,)) for name, one in beside.items()}
    pairs |= {name: Pair(name, some[0], (), some) for name, some in options.items()}
    constants = {name: step for name, step in constants.items() if name not in pairs}
    return Correspondence.of(
        variables,
        tensors,
        pairs=pairs,
        constants=constants,
        layout=f"{fitter.layout.value if fitter.layout else 'undecided'}: {fitter.reason}",
    )


def _names(pair: Pair) -> tuple[str, ...]:
    """Returns the tensors that a variable takes or may take."""
    return tuple(name for taken in pair.candidates or (pair.taken,) for name in taken.tensors)


def _natural(name: str) -> tuple[tuple[bool, str, int], ...]:
    return tuple(
        (False, "", token) if isinstance(token, int) else (True, token, 0) for token in tokens(name)
    )


def _pair(pairing: Pairing, judgement: Judgement, row: int, variable: str) -> Pair:
    taken = pairing.fitting(row, pairing.pairs[row]).by_variable[variable]
    columns = judgement.candidates or (pairing.pairs[row],)
    candidates: dict[tuple[object, ...], Taken] = {}
    for column in columns:
        option = pairing.fitting(row, column).by_variable.get(variable)
        if option is not None:
            for name in option.others or option.tensors:
                names = (name,) if option.others else option.tensors
                candidates[names, option.cut] = replace(option, tensors=names, others=())
    sure = len(candidates) < 2 and not judgement.candidates
    options = () if sure else tuple(candidates.values())
    module, tensors = pairing.variables[row], pairing.tensors[pairing.pairs[row]]
    only = sure and judgement.reasons == (ONLY,) and is_only(module, tensors, variable)
    return Pair(variable, taken, judgement.reasons, options, is_decided=only)
