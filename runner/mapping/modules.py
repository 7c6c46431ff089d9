"""Variables and tensors in modules, and which modules fit each other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runner.mapping.layouts import Layout, Shape, decide, fits, outputs_first
from runner.mapping.names import Token, tokens

WEIGHT, BIAS, MEAN, VARIANCE, RECURRENT, BIAS_2 = "weight", "bias", "mean", "var", "hh", "bias_hh"
_ROLES = {
    **dict.fromkeys(("weight", "kernel", "w", "weights", "gamma", "scale", "g"), WEIGHT),
    **dict.fromkeys(("embeddings", "embedding"), WEIGHT),
    **dict.fromkeys(("bias", "beta", "b", "biases", "offset"), BIAS),
    **dict.fromkeys(("running_mean", "moving_mean", "mean"), MEAN),
    **dict.fromkeys(("running_var", "moving_variance", "var", "variance"), VARIANCE),
}
# The ends of names such as `in_proj_weight`.
_ENDS = ("weight", "bias", "kernel", "weights", "biases", "embeddings")
# PyTorch's recurrent layers: `weight_hh_l0_reverse` is of the module `l0_reverse`.
_RNN = re.compile(r"(weight|bias)_(ih|hh)_?(.*)")
# Keras keeps an adapter's matrices beside the kernel.
_LORA = re.compile(r"lora_(?:kernel|embeddings)_([ab])")
_RNN_ROLES = {"weight_ih": WEIGHT, "weight_hh": RECURRENT, "bias_ih": BIAS, "bias_hh": BIAS_2}
_PROJECTIONS = ("query", "key", "value")


@dataclass(frozen=True)
class Leaf:
    """A variable or a tensor, as part of a module.

    Attributes:
      name: its whole name.
      shape: its dimensions; of a part of a fused tensor, the part's.
      word: the end of its name, behind the module's.
      part: which third of a fused tensor it is; None for a whole one.
      axis: the axis along which the tensor is split.
      layer: the class of the Keras layer that holds a variable, if known.
    """

    name: str
    shape: Shape
    word: str
    part: int | None = None
    axis: int = 0
    layer: str = ""


@dataclass(frozen=True)
class Module:
    """Variables or tensors with one beginning.

    Attributes:
      name: the beginning, with its separator.
      tokens: the beginning as words and numbers.
      leaves: role -> variable or tensor.
      position: where it begins among the names.
    """

    name: str
    tokens: tuple[Token, ...]
    leaves: Mapping[str, Leaf]
    position: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each leaf; equal for modules that may stand for each other."""
        return tuple(sorted(math.prod(leaf.shape) for leaf in self.leaves.values()))

    @property
    def is_vector(self) -> bool:
        """Whether all leaves have one axis, as norms do."""
        return all(len(leaf.shape) < 2 for leaf in self.leaves.values())


def group(
    leaves: Mapping[str, Shape],
    *,
    layers: Mapping[str, str] | None = None,
    spelled: Mapping[str, str] | None = None,
) -> list[Module]:
    """Puts variables or tensors into modules by the beginnings of their names.

    Args:
      leaves: name -> shape.
      layers: variable -> class of its Keras layer, if known.
      spelled: name -> the name with the words of hints.
    """
    layers, spelled = layers or {}, spelled or {}
    cut = {name: _cut(spelled.get(name, name)) for name in leaves}
    common = Counter(word for _, word in cut.values())
    members: dict[str, list[Leaf]] = defaultdict(list)
    for name, shape in leaves.items():
        beginning, word = cut[name]
        recurrent = _RNN.fullmatch(word)
        if recurrent:
            layer, reverse, _ = recurrent[3].partition("_reverse")
            beginning = f"{beginning}{layer}_{'backward' if reverse else 'forward'}."
            word = f"{recurrent[1]}_{recurrent[2]}"
        else:
            # `in_proj_weight` is the weight of a module `in_proj`; `cls_token` is nobody's token.
            head, _, last = word.rpartition("_")
            if adapter := _LORA.fullmatch(word):
                beginning, word = f"{beginning}lora_{adapter[1]}/", "weight"
            elif head and (last in _ENDS or common[last] > 1) and word not in _ROLES:
                beginning, word = f"{beginning}{head}", last
        members[beginning].append(Leaf(name, shape, word, layer=layers.get(name, "")))
    roles = _roles(members.values())
    modules = []
    for beginning, parts in _apart(members, roles):
        named = [roles.get(leaf.word, leaf.word) for leaf in parts]
        if len({*named}) < len(named):
            named = [leaf.word for leaf in parts]
        cells = tokens(beginning)
        if len(parts) == 1 and named[0] == parts[0].word:
            # A parameter of its own, such as `cls_token`, is named by all of its words.
            named, cells = [WEIGHT], tokens(f"{beginning}{parts[0].word}")
        leaves_of = dict(zip(named, parts, strict=True))
        modules.append(Module(beginning, cells, leaves_of, len(modules)))
    return _recurrent(modules)


def _apart(
    members: Mapping[str, Sequence[Leaf]], roles: Mapping[str, str]
) -> Iterable[tuple[str, Sequence[Leaf]]]:
    """Yields the leaves of each module; parameters of unknown roles, as `cls_token`, one by one."""
    for beginning, parts in members.items():
        alike = len({leaf.shape for leaf in parts}) == 1 and len(parts[0].shape) == 1
        numbered = all(leaf.word.isdigit() for leaf in parts)
        if alike or numbered or any(leaf.word in roles for leaf in parts):
            yield beginning, parts
        else:
            yield from ((beginning, [leaf]) for leaf in parts)


def _cut(name: str) -> tuple[str, str]:
    at = max(name.rfind("/"), name.rfind(".")) + 1
    return name[:at], name[at:]


def _roles(modules: Iterable[Sequence[Leaf]]) -> dict[str, str]:
    """Returns word -> role: the known ones, and others where a kernel and its bias tell them."""
    roles = {**_ROLES, **_RNN_ROLES}
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for leaves in modules:
        if len(leaves) == 2:
            vector, matrix = sorted(leaves, key=lambda leaf: len(leaf.shape))
            if len(vector.shape) == 1 and len(matrix.shape) > 1:
                votes[matrix.word][WEIGHT] += 1
                votes[vector.word][BIAS] += 1
    for word, counts in votes.items():
        if word not in roles and len(counts) == 1:
            roles[word] = next(iter(counts))
    return roles


def _recurrent(modules: list[Module]) -> list[Module]:
    """Joins `lstm_cell/recurrent` + kernel with `lstm_cell/` + kernel, bias."""
    by_name = {module.name: module for module in modules}
    joined = []
    for module in modules:
        other = by_name.get(f"{module.name}recurrent")
        if other is not None:
            leaves = {**module.leaves, RECURRENT: other.leaves[WEIGHT]}
            module = Module(module.name, module.tokens, leaves, module.position)
        elif module.name.endswith("recurrent") and module.name[:-9] in by_name:
            continue
        joined.append(module)
    return joined


def thirds(tensors: Sequence[Module], variables: Sequence[Module]) -> list[Module]:
    """Returns the modules of a file, with fused projections as three modules.

    A projection is fused if one axis of its weight is three times that of a variable whose size
    no tensor of the file has otherwise.
    """
    weights = [module.leaves[WEIGHT] for module in variables if WEIGHT in module.leaves]
    needed = {math.prod(weight.shape) for weight in weights if len(weight.shape) > 1}
    result: list[Module] = []
    for module in tensors:
        weight, bias = module.leaves.get(WEIGHT), module.leaves.get(BIAS)
        size = math.prod(weight.shape) if weight else 0
        longest = max(weight.shape) if weight else 0
        is_matrix = weight and sum(axis > 1 for axis in weight.shape) == 2
        if not is_matrix or size in needed or size // 3 not in needed or longest % 3:
            result.append(module)
            continue
        axes = list(weight.shape)
        axis = axes.index(longest)
        axes[axis] //= 3
        for number, projection in enumerate(_PROJECTIONS):
            leaves = {WEIGHT: replace(weight, shape=tuple(axes), part=number, axis=axis)}
            if bias:
                leaves[BIAS] = replace(bias, shape=(bias.shape[0] // 3,), part=number)
            cells = (*module.tokens, projection)
            result.append(Module(module.name, cells, leaves, module.position))
    return result


@dataclass(frozen=True)
class Taken:
    """What a variable takes: tensors, one or several that are combined, and the steps.

    Attributes:
      tensors: the names.
      part: which third of the tensor; None for all of it.
      axis: the axis that is split.
      step: the steps of a rule's expression behind the part; may be empty.
      others: tensors that fit as well, where the words of a module do not say which is which.
    """

    tensors: tuple[str, ...]
    part: int | None = None
    axis: int = 0
    step: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fitting:
    """How a module of tensors fits a module of variables.

    Attributes:
      by_variable: variable -> what it takes.
      lacking: the variables without a tensor, such as absent biases.
      extra: how many tensors no variable takes.
    """

    by_variable: Mapping[str, Taken]
    lacking: tuple[str, ...] = ()
    extra: int = 0


class Fitter:
    """Fits modules by the decision on the layout of the whole file.

    Attributes:
      layout: the decision; None where nothing decides.
      reason: its reason.
    """

    def __init__(self, variables: Sequence[Module], tensors: Sequence[Module]) -> None:
        kernels = [leaf.shape for module in variables for leaf in _kernels(module)]
        matrices = [leaf.shape for module in tensors for leaf in _kernels(module)]
        votes = sum(map(_orientation, tensors))
        if sum(map(_orientation, variables)) > 0:
            votes = -votes  # The model's kernels lie outputs first too.
        self.layout, self.reason = decide(kernels, matrices, votes)
        self._shapes = {*matrices}
        self._fitting_layouts: dict[Shape, set[Layout | None]] = {}

    def fit(self, variables: Module, tensors: Module) -> Fitting | None:
        """Returns how a module of tensors fits a module of variables, None if it does not."""
        if RECURRENT in variables.leaves or RECURRENT in tensors.leaves:
            return _fit_recurrent(variables, tensors)
        free = dict(tensors.leaves)
        taken: dict[str, Taken] = {}
        lacking, unnamed = [], []
        for role, leaf in variables.leaves.items():
            tensor = free.get(role)
            step = None if tensor is None else self.step(leaf, tensor)
            if tensor is None:
                unnamed.append((role, leaf))
            elif step is None:
                return None
            else:
                del free[role]
                taken[leaf.name] = Taken((tensor.name,), tensor.part, tensor.axis, step)
        if len(unnamed) == len(free) and all(leaf.word.isdigit() for leaf in free.values()):
            # Files of Keras number the variables of a layer in order.
            numbered = sorted(free, key=int)
            for (_, leaf), number in zip(unnamed, numbered, strict=True):
                step = self.step(leaf, free[number])
                if step is None:
                    return None
                taken[leaf.name] = Taken((free[number].name,), step=step)
            return Fitting(taken)
        for role, leaf in unnamed:
            options = {
                tensor.name: Taken((tensor.name,), tensor.part, tensor.axis, step)
                for other, tensor in free.items()
                if other not in _ROLES.values() and (step := self.step(leaf, tensor)) is not None
            }
            if options:
                guesses = {*options} - {name for leaf in taken.values() for name in leaf.tensors}
                first = next((name for name in options if name in guesses), next(iter(options)))
                others = tuple(options) if len(options) > 1 else ()
                taken[leaf.name] = replace(options[first], others=others)
            elif role == BIAS or (role == WEIGHT and variables.is_vector):
                lacking.append(leaf.name)
            else:
                return None
        for several in [leaf for leaf in taken.values() if leaf.others]:
            free = {role: leaf for role, leaf in free.items() if leaf.name not in several.others}
        used = {name for leaf in taken.values() for name in (*leaf.tensors, *leaf.others)}
        extra = [role for role, leaf in tensors.leaves.items() if leaf.name not in used]
        if not taken or {*extra} - {BIAS, WEIGHT}:
            return None
        return Fitting(taken, tuple(lacking), len(extra))

    def step(self, variable: Leaf, tensor: Leaf) -> str | None:
        """Returns the steps that bring a tensor to a variable, None if there are none."""
        ways = {way.layout: way.step for way in fits(variable.shape, tensor.shape)}
        if None in ways or len(variable.shape) < 2:
            return next(iter(ways.values()), None)
        embedding = is_embedding(variable)
        wanted = Layout.SAME if embedding else self.layout
        if wanted in ways:
            return ways[wanted]
        if wanted is None:
            return ways.get(Layout.FLIPPED, ways.get(Layout.SAME))
        if not embedding and wanted in self._layouts(variable.shape):
            return None
        return next(iter(ways.values()), None)

    def _layouts(self, shape: Shape) -> set[Layout | None]:
        """Returns the layouts in which tensors of the file fit a shape."""
        if shape not in self._fitting_layouts:
            self._fitting_layouts[shape] = {
                way.layout for tensor in self._shapes for way in fits(shape, tensor)
            }
        return self._fitting_layouts[shape]


def is_embedding(leaf: Leaf) -> bool:
    """Returns whether a variable is a table of rows, which no framework transposes."""
    return "embedding" in leaf.word or leaf.layer.endswith("Embedding")


def _kernels(module: Module) -> list[Leaf]:
    return [
        leaf for leaf in module.leaves.values() if len(leaf.shape) > 1 and not is_embedding(leaf)
    ]


def _orientation(module: Module) -> int:
    """Returns 1 where a kernel lies outputs first by its bias, -1 where last, else 0."""
    weight, bias = module.leaves.get(WEIGHT), module.leaves.get(BIAS)
    if weight is None or bias is None or len(weight.shape) < 2:
        return 0
    first = outputs_first(weight.shape, bias.shape)
    return 0 if first is None else 1 if first else -1


_GATES = {4: "torch_lstm", 3: "torch_gru"}


def _fit_recurrent(variables: Module, tensors: Module) -> Fitting | None:
    """Fits an LSTM or a GRU of PyTorch by its gates."""
    mine, theirs = variables.leaves, tensors.leaves
    if not {WEIGHT, RECURRENT} <= mine.keys() & theirs.keys():
        return None
    inputs, units = mine[WEIGHT].shape[0], mine[RECURRENT].shape[0]
    gates = mine[RECURRENT].shape[-1] // units
    step = _GATES.get(gates)
    if step is None or theirs[WEIGHT].shape != (gates * units, inputs):
        if theirs[WEIGHT].shape != mine[WEIGHT].shape or theirs[RECURRENT].shape != mine[RECURRENT].shape:
            return None
        step = ""
    elif theirs[RECURRENT].shape != (gates * units, units):
        return None
    taken = {mine[role].name: Taken((theirs[role].name,), step=step) for role in (WEIGHT, RECURRENT)}
    biases = tuple(theirs[role].name for role in (BIAS, BIAS_2) if role in theirs)
    if BIAS not in mine:
        return Fitting(taken, extra=len(biases))
    if not biases:
        return Fitting(taken, (mine[BIAS].name,))
    taken[mine[BIAS].name] = Taken(biases, step=step)
    return Fitting(taken)
