"""Finds the regular rename under which missing tensors are all in the checkpoint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.restoration.nearest_names import NearestNames, edit_distance
from runner.restoration.renames import Renames
from runner.restoration.selection import REGEX

# Enough pairs of names to see the regularity, few enough to stay fast among very many.
_SAMPLES = 6
_PARTNERS = 8
_TRIED = 48
_RULES = 4
_EVALUATED = 12
_ANY = f"{REGEX}(.*)"
_TOKENS = re.compile(r"[A-Za-z]+|\d+|[^A-Za-z\d]")


@dataclass(frozen=True)
class Search:
    """What a rename must bring about.

    Attributes:
      missing: the names that must become names of tensors.
      kept: names that must stay as they are, because their tensors are found.
      tensors: the names of the tensors that no variable takes.
      fits: whether a tensor could give the value of a missing name.
    """

    missing: Sequence[str]
    kept: Sequence[str]
    tensors: Mapping[str, object]
    fits: Callable[[str, str], bool]


def suggest(search: Search) -> dict[str, str] | None:
    """Returns rename rules that map every missing name to a tensor of its own that fits.

    One rule if one does it, else up to four: prefix maps, regular expressions, whole names. None
    when no such rules are found.
    """
    index = NearestNames(search.tensors)
    left = list(search.missing)
    taken: set[str] = set()
    rules: dict[str, str] = {}
    while left and len(rules) < _RULES:
        best: tuple[str, str] | None = None
        mapped: dict[str, str] = {}
        for rule in _ranked(search, left, index):
            found = _mapped(rule, search, left, taken)
            if len(found) > len(mapped):
                best, mapped = rule, found
            if len(mapped) == len(left):
                break
        if best is None:
            return None
        # An expression for one name says less clearly what it does than the name.
        plain = len(mapped) == 1 and best[0].startswith(REGEX) and best[0] != _ANY
        rules.update(mapped if plain else [best])
        taken.update(mapped.values())
        left = [name for name in left if name not in mapped]
    return None if left else _as_prefixes(rules, search.missing)


def _as_prefixes(rules: dict[str, str], missing: Sequence[str]) -> dict[str, str]:
    """Returns an expression that only puts something before every name as prefix maps."""
    before = rules[_ANY].removesuffix(r"\1").replace(r"\\", "\\") if list(rules) == [_ANY] else ""
    heads = {name[: name.find("/") + 1] or name for name in missing}
    if not before or len(heads) > _RULES:
        return rules
    return {head: before + head for head in sorted(heads)}


def _ranked(search: Search, left: Sequence[str], index: NearestNames) -> list[tuple[str, str]]:
    """Returns the likely rules, those first that hold for most of a sample of the names."""
    step = max(1, len(left) // _TRIED)
    trial = left[::step][:_TRIED]
    distances: dict[tuple[str, str], int] = {}
    for name in left[:: max(1, len(left) // _SAMPLES)][:_SAMPLES]:
        for partner in index.find(name, _PARTNERS):
            if search.fits(name, partner):
                distance = edit_distance(name, partner)
                for rule in _rules(name, partner):
                    distances[rule] = min(distance, distances.get(rule, distance))
    scores = {rule: len(_mapped(rule, search, trial, set())) for rule in distances}
    # Of rules that hold as often the one between the most similar names is meant.
    order = sorted(scores, key=lambda rule: (-scores[rule], distances[rule]))
    return [rule for rule in order if scores[rule]][:_EVALUATED]


def _mapped(
    rule: tuple[str, str], search: Search, names: Sequence[str], taken: set[str]
) -> dict[str, str]:
    """Returns what the rule maps; nothing when it maps any name to what it must not."""
    renames = Renames(dict([rule]))
    mapped: dict[str, str] = {}
    used = set(taken)
    for name in names:
        target = renames.find(name)
        if target is None:
            continue
        if target in used or target not in search.tensors or not search.fits(name, target):
            return {}
        used.add(target)
        mapped[name] = target
    if any(renames.find(name) not in (None, name) for name in search.kept):
        return {}
    return mapped


def _rules(name: str, tensor: str) -> Iterator[tuple[str, str]]:
    """Yields rules that turn the one name into the other, the most general ones first."""
    yield from _prefix_rules(name, tensor)
    old, new = _TOKENS.findall(name), _TOKENS.findall(tensor)
    if not any(len(token) > 1 and token.isalpha() for token in set(old) & set(new)):
        return  # Names that share no word are alike by chance.
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for context in (0, 1, len(old)):
        rule = _expression(old, new, codes, context)
        if rule is not None:
            yield rule


def _prefix_rules(name: str, tensor: str) -> Iterator[tuple[str, str]]:
    parts = name.split("/")
    for count in range(len(parts)):
        prefix, rest = "/".join(parts[:count]), "/".join(parts[count:])
        if tensor.endswith(rest):
            old, new = f"{prefix}/" if prefix else "", tensor[: len(tensor) - len(rest)]
            yield (old, new) if old else (_ANY, _escaped(new) + r"\1")


def _expression(
    old: Sequence[str],
    new: Sequence[str],
    codes: Sequence[tuple[str, int, int, int, int]],
    context: int,
) -> tuple[str, str] | None:
    r"""Returns a rule that keeps what both names share as groups and changes the rest.

    Where nothing is left for a group it is a rule for the one name; None is no sensible rule.

    Args:
      old: the tokens of the model's name.
      new: the tokens of the tensor's name.
      codes: how the tokens differ, from `difflib`.
      context: beside a change so many shared tokens are spelt out, numbers as `\d+`.
    """
    pattern, value = "", ""
    groups = 0

    def group(expression: str) -> None:
        nonlocal pattern, value, groups
        groups += 1
        pattern += f"({expression})"
        value += rf"\g<{groups}>"

    def literal(one: str, other: str) -> None:
        nonlocal pattern, value
        pattern += re.escape(one)
        value += _escaped(other)

    def spelt(tokens: Sequence[str]) -> None:
        for token in tokens:
            if token.isdigit():
                group(r"\d+")
            else:
                literal(token, token)

    for position, (code, start, end, new_start, new_end) in enumerate(codes):
        if code != "equal":
            literal("".join(old[start:end]), "".join(new[new_start:new_end]))
            continue
        first, last = position == 0, position == len(codes) - 1
        head = start if first else min(end, start + context)
        tail = end if last else max(head, end - context)
        if context >= len(old):
            head = tail = end
        spelt(old[start:head])
        if tail > head:
            group(".*" if first or last else ".*?")
        spelt(old[tail:end])
    # Two groups of anything side by side could be divided anywhere.
    if "*)(." in pattern or "*?)(." in pattern:
        return None
    if groups == 0:
        return "".join(old), "".join(new)
    # `\1` reads better, but not before a digit, which would make it another group.
    return f"{REGEX}{pattern}", re.sub(r"\\g<(\d)>(?!\d)", r"\\\1", value)


def _escaped(text: str) -> str:
    """Escapes a replacement's only special letter."""
    return text.replace("\\", r"\\")
