"""Finds the names nearest to another by edit distance, also among very many."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.restoration.patterns import REGEX, Renames

# As many names, those that share the rarest parts first, are compared letter by letter.
_COMPARED = 24
_PARTS = re.compile(r"[A-Za-z]+|\d+")


class NearestNames:
    """Ranks names by their edit distance; the names are indexed when it is first asked."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    def find(self, name: str, count: int = 3) -> tuple[str, ...]:
        """Returns up to `count` names, the nearest first, names at equal distance in their order.

        Only names that share a part (a run of letters or digits) with `name` are compared where
        there are more than a few dozen names.
        """
        parts = self._index
        if len(self._sorted) <= _COMPARED:
            candidates: Iterable[str] = self._sorted
        else:
            votes: Counter[str] = Counter()
            own = {close for part in _parts(name) for close in self._close(part)}
            wanted = sorted(own, key=lambda part: len(parts[part]))
            for part in wanted:
                # Parts that nearly every name has decide nothing once there are candidates.
                same = parts[part]
                if len(same) <= len(self._sorted) // 4 or len(votes) < count:
                    votes.update(same)
            candidates = [each for each, _ in votes.most_common(_COMPARED)]
            candidates = candidates or self._sorted[:_COMPARED]
        return tuple(sorted(candidates, key=lambda each: (edit_distance(name, each), each))[:count])

    def _close(self, part: str) -> Iterable[str]:
        """Returns the part itself if a name has it, else the words nearest to it."""
        if part in self._index:
            return (part,)
        return difflib.get_close_matches(part, self._words, n=3) if part.isalpha() else ()

    @functools.cached_property
    def _words(self) -> list[str]:
        return [part for part in self._index if part.isalpha()]

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(set(self._names))

    @functools.cached_property
    def _index(self) -> Mapping[str, list[str]]:
        index: dict[str, list[str]] = {}
        for name in self._sorted:
            for part in _parts(name):
                index.setdefault(part, []).append(name)
        return index


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Returns up to `count` of the names, the nearest by edit distance first."""
    return NearestNames(names).find(name, count)


def edit_distance(one: str, other: str) -> int:
    """Returns the Levenshtein distance: how many letters to insert, delete or replace."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other = one[start:], other[start:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row[0] = row[0], i
        for j, counterpart in enumerate(other, 1):
            cost = above + (letter != counterpart)
            above = row[j]
            row[j] = min(cost, above + 1, row[j - 1] + 1)
    return row[-1]


def _parts(name: str) -> set[str]:
    return set(_PARTS.findall(name.lower()))


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
