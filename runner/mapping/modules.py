"""Variables and tensors in modules, and which modules fit each other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runner.mapping.cuts import Cut, cuts
from runner.mapping.layouts import Shape, Variable
from runner.mapping.names import Token, tokens
from runner.proof.source_modules import of_module

WEIGHT, BIAS, MEAN, VARIANCE, RECURRENT, BIAS_2 = "weight", "bias", "mean", "var", "hh", "bias_hh"
ROLES = {
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
class Leaf(Variable):
    """A variable or a tensor, as part of a module.

    Attributes:
      word: the end of its name, behind the module's.
      cut: the step that takes a part of a fused tensor, whose shape it has; empty for a whole one.
    """

    word: str = ""
    cut: str = ""


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

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of its name."""
        return frozenset(token for token in self.tokens if isinstance(token, str))

    @cached_property
    def is_vector(self) -> bool:
        """Whether all leaves have one axis, as norms do."""
        return all(len(leaf.shape) < 2 for leaf in self.leaves.values())


def group(
    leaves: Mapping[str, Shape],
    *,
    layers: Mapping[str, str] | None = None,
    flattened: Mapping[str, Shape] | None = None,
    spelled: Mapping[str, str] | None = None,
) -> list[Module]:
    """Puts variables or tensors into modules by the beginnings of their names.

    Args:
      leaves: name -> shape.
      layers: variable -> class of its Keras layer, if known.
      flattened: variable -> see `Variable.flattened`.
      spelled: name -> the name with the words of hints.
    """
    layers, flattened, spelled = layers or {}, flattened or {}, spelled or {}
    cut = {name: _cut(of_module(spelled.get(name, name))) for name in leaves}
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
            # `in_proj_weight` is the weight of a module `in_proj`; `cls_token` has no module.
            head, _, last = word.rpartition("_")
            if adapter := _LORA.fullmatch(word):
                beginning, word = f"{beginning}lora_{adapter[1]}/", "weight"
            elif head and (last in _ENDS or common[last] > 1) and word not in ROLES:
                beginning, word = f"{beginning}{head}", last
        layer, channels = layers.get(name, ""), flattened.get(name, ())
        leaf = Leaf(name, shape, layer=layer, flattened=channels, word=word)
        members[beginning].append(leaf)
    roles = _roles(members.values())
    modules: list[Module] = []
    for beginning, parts in _apart(members, roles):
        named = [roles.get(leaf.word, leaf.word) for leaf in parts]
        if len({*named}) < len(named):
            named = [leaf.word for leaf in parts]
        cells = tokens(beginning)
        if len(parts) == 1 and named[0] == parts[0].word:
            named = [WEIGHT]
        if len(parts) == 1 and parts[0].word not in roles:
            # A parameter of its own, such as `cls_token`, is named by all of its words.
            cells = tokens(f"{beginning}{parts[0].word}")
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
    roles = {**ROLES, **_RNN_ROLES}
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

    A projection is fused if one axis of its weight is three times the axis of a variable whose
    size no tensor of the file has otherwise.
    """
    weights = [module.leaves[WEIGHT] for module in variables if WEIGHT in module.leaves]
    needed = {math.prod(weight.shape) for weight in weights if len(weight.shape) > 1}
    result: list[Module] = []
    for module in tensors:
        weight = module.leaves.get(WEIGHT)
        size, whole = (math.prod(weight.shape), max(weight.shape)) if weight else (0, 0)
        is_matrix = weight is not None and sum(axis > 1 for axis in weight.shape) == 2
        if not is_matrix or size in needed or size // 3 not in needed or whole % 3:
            result.append(module)
            continue
        for cut, projection in zip(cuts(whole, whole // 3, ()), _PROJECTIONS, strict=True):
            leaves = {
                role: _part(module.leaves[role], cut)
                for role in (WEIGHT, BIAS)
                if role in module.leaves
            }
            cells = (*module.tokens, projection)
            result.append(Module(module.name, cells, leaves, module.position))
    return result


def _part(leaf: Leaf, cut: Cut) -> Leaf:
    axis = leaf.shape.index(cut.whole)
    shape = (*leaf.shape[:axis], cut.size, *leaf.shape[axis + 1 :])
    return replace(leaf, shape=shape, cut=cut.steps(leaf.shape, axis))
