"""The shortest rules that say which tensors a model's variables take."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.mapping.correspondence import Correspondence, Pair
from runner.mapping.generalisation import generalise
from runner.mapping.module_fitting import Taken
from runner.rules.expressions import in_expression
from runner.rules.torch_layouts import TORCH_LEAVES, is_projection, recurrent_names


@dataclass(frozen=True)
class Written:
    """Rules in the order in which they are written.

    Attributes:
      rules: pattern over variables -> expression.
      convert: pattern over variables -> conversion.
    """

    rules: Mapping[str, str]
    convert: Mapping[str, str]


def write(
    correspondence: Correspondence, variables: Mapping[str, object], layers: Mapping[str, str]
) -> Written:
    """Writes the rules for all certain pairs of a correspondence.

    Args:
      correspondence: the pairs.
      variables: the names of all variables of the model.
      layers: variable -> class of its Keras layer.
    """
    certain = {name: pair for name, pair in correspondence.pairs.items() if pair.is_certain}
    members: dict[str, list[str]] = defaultdict(list)
    for name in variables:
        members[name[: name.rfind("/") + 1]].append(name)
    modules: dict[str, str] = {}
    single: dict[str, str] = {}
    is_torch = bool(_torch_beginnings([*certain.values()], layers))
    unsure = {name for name in correspondence.pairs if name not in certain}
    for beginning, names in members.items():
        pairs = [certain[name] for name in names if name in certain]
        whole = _torch_beginnings(pairs, layers) if is_torch else _plain_beginnings(pairs)
        value = max({*whole.values()}, key=[*whole.values()].count, default=None)
        if value is not None and beginning:
            modules[beginning] = value
        for pair in pairs:
            if value is None or not beginning or whole.get(pair.variable) != value:
                single[pair.variable] = _expression(pair, is_torch)
    barred = [beginning for beginning, names in members.items() if unsure.intersection(names)]
    rules = _constants(correspondence.constants, variables)
    rules |= generalise(single, single, [name for name in variables if name not in single])
    short = _shortened(modules, "." if is_torch else "/")
    written = generalise(short, modules, [name for name in barred if name not in modules])
    rules |= {key: _quoted(value) for key, value in written.items()}
    rules = {key: value for key, value in rules.items() if key != value}
    return Written(rules, {"*": "torch"} if is_torch else {})


def _quoted(value: str) -> str:
    """Returns the beginning of names, and steps, as an expression."""
    source, bar, steps = value.partition(" | ")
    return f"{in_expression(source) or source}{bar}{steps}"


def _constants(constants: Mapping[str, str], variables: Iterable[str]) -> dict[str, str]:
    """Returns one rule for all variables of a constant, if the end of their names tells them."""
    rules: dict[str, str] = {}
    for constant in {*constants.values()}:
        names = [name for name, value in constants.items() if value == constant]
        count = 1
        while len({name[-count:] for name in names}) == 1 and count <= len(names[0]):
            count += 1
        end = names[0][len(names[0]) - count + 1 :]
        others = [name for name in variables if name not in names]
        if len(names) > 1 and end and not any(name.endswith(end) for name in others):
            rules[f"*{end}"] = constant
        else:
            values = dict.fromkeys(names, constant)
            rules |= generalise(values, values, others)
    return rules


def _expression(pair: Pair, is_torch: bool) -> str:
    expression = pair.taken.expression()
    # A name without steps would be converted by `convert`.
    is_plain = is_torch and expression == Taken((*pair.taken.tensors[:1],)).expression()
    return f"{expression} | reshape" if is_plain else expression


def _torch_beginnings(pairs: Sequence[Pair], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns variable -> the beginning of the tensor's name that `torch` completes, and steps."""
    values: dict[str, str] = {}
    conversions: dict[str, str] = {}
    for pair in pairs:
        taken, leaf = pair.taken, pair.variable.rpartition("/")[2]
        beginning, conversion = "", None
        if taken.step.startswith(("torch_lstm", "torch_gru")):
            beginning, conversion = _recurrent(pair)
        elif len(taken.tensors) == 1:
            end = TORCH_LEAVES.get(leaf, "\0")
            tensor = taken.tensors[0]
            beginning = tensor.removesuffix(end) if tensor.endswith(f".{end}") else ""
            conversion = _conversion(pair, layers.get(pair.variable, ""))
        # Where steps begin is found by their bar.
        is_free = bool(beginning) and " | " not in beginning
        if is_free and conversion is not None and not taken.cut:
            values[pair.variable] = beginning
            if conversion:
                conversions[beginning] = conversion
    # A bias goes with any kernel.
    return {name: value + conversions.get(value, "") for name, value in values.items()}


def _conversion(pair: Pair, layer: str) -> str | None:
    """Returns what has to be said besides `torch`; None if only steps say it."""
    step = pair.taken.step
    if step in ("", "reshape"):
        is_kernel = pair.variable.endswith("/kernel")
        return " | conv1d_gpt2" if is_kernel else "" if step == "" or layer else None
    if step in ("linear", "conv"):
        return ""
    if step == "depthwise":
        return "" if layer.startswith("Depthwise") else " | depthwise"
    if step == "linear | reshape":
        is_plain = layer == "EinsumDense" and not is_projection(pair.variable)
        return "" if is_plain else " | einsum_dense"
    return None


def _recurrent(pair: Pair) -> tuple[str, str | None]:
    """Returns the beginning of a recurrent layer's tensors, and its conversion with its number."""
    match = re.fullmatch(r"(.*)(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?", pair.taken.tensors[0])
    if match is None:
        return "", None
    leaf = pair.variable.rpartition("/")[2]
    names = recurrent_names(pair.variable, match[1] + leaf, int(match[2]))
    steps = f" | {pair.taken.step}({match[2]})"
    return (match[1], steps) if {*names} == {*pair.taken.tensors} else ("", None)


def _plain_beginnings(pairs: Sequence[Pair]) -> dict[str, str]:
    """Returns variable -> the beginning of a tensor's name that ends as the variable's does."""
    values = {}
    for pair in pairs:
        leaf, tensor = pair.variable.rpartition("/")[2], pair.taken.tensors[0]
        is_free = tensor.endswith(f"/{leaf}") and " | " not in tensor
        is_plain = len(pair.taken.tensors) == 1 and not pair.taken.step and not pair.taken.cut
        if is_plain and is_free:
            values[pair.variable] = tensor.removesuffix(leaf)
    return values if len(values) == len(pairs) else {}


def _shortened(modules: Mapping[str, str], separator: str) -> dict[str, str]:
    """Leaves out what modules and their tensors have in common at the end of their names."""
    short: dict[str, tuple[str, str]] = {}
    for key, value in modules.items():
        source, bar, steps = value.partition(" | ")
        mine, theirs = key.split("/")[:-1], source.split(separator)[:-1]
        while len(mine) > 1 and len(theirs) > 1 and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
        beginning = "".join(f"{part}{separator}" for part in theirs)
        short[key] = "".join(f"{part}/" for part in mine), beginning + bar + steps
    values: dict[str, set[str]] = defaultdict(set)
    for key, value in short.values():
        values[key].add(value)
    return {
        **{key: value for key, value in modules.items() if len(values[short[key][0]]) > 1},
        **{key: value for key, value in short.values() if len(values[key]) == 1},
    }
