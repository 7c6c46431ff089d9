"""Patterns over names: globs, regular expressions after `re:`, and rename rules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

REGEX = "re:"
_WILDCARDS = frozenset("*?[")
# The keys of a scaffold that map patterns over variables to what happens to their tensors.
PATTERN_MAPS = ("convert", "transpose", "vocabulary")

T = TypeVar("T")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a glob, or after `re:` a regular expression; match it with `fullmatch`.

    In a glob `*` matches any characters, including `/`.

    Raises:
      re.error: when the expression after `re:` is not valid.
    """
    if pattern.startswith(REGEX):
        return re.compile(pattern.removeprefix(REGEX))
    return re.compile(fnmatch.translate(pattern))


@dataclass(frozen=True)
class Selected:
    """The outcome of a selection.

    Attributes:
      selected: the names that match an included and no excluded pattern.
      excluded: the names that match an excluded pattern.
      unused: the patterns, included or excluded, that match none of the names.
    """

    selected: frozenset[str]
    excluded: frozenset[str]
    unused: tuple[str, ...]


def select(
    names: Iterable[str],
    include: Sequence[str],
    exclude: Sequence[str],
    *,
    addresses: Mapping[str, str] | None = None,
) -> Selected:
    """Selects the names that match an `include` pattern and no `exclude` pattern.

    Patterns match whole names, or the other name that `addresses` has for a name.

    Raises:
      re.error: when a `re:` pattern is not valid.
    """
    candidates, addresses = list(names), addresses or {}
    others = {name: addresses[name] for name in candidates if name in addresses}
    matched: dict[str, set[str]] = {}
    for pattern in (*include, *exclude):
        matches = compile_pattern(pattern).fullmatch
        matched[pattern] = {*filter(matches, candidates)}
        matched[pattern].update(name for name, address in others.items() if matches(address))
    included = frozenset().union(*(matched[pattern] for pattern in include))
    excluded = frozenset().union(*(matched[pattern] for pattern in exclude))
    unused = tuple(pattern for pattern in matched if not matched[pattern])
    return Selected(included - excluded, excluded, unused)


class FirstMatch(Generic[T]):
    """Finds the value of the first of several patterns that matches a name, and records its use.

    Raises:
      re.error: when a `re:` pattern is not valid.
    """

    def __init__(self, values: Mapping[str, T]) -> None:
        self._values = {**values}
        self._patterns = {key: pattern for key in values if (pattern := self._compile(key))}
        self._names = values.keys() - self._patterns.keys()
        self._order = {key: at for at, key in enumerate(values)}
        self._used: set[str] = set()

    def find(self, *names: str) -> T | None:
        """Returns the value of the first pattern that matches one of the whole names, or None."""
        # A table of a thousand names is looked up, not tried one by one.
        exact = min(self._names.intersection(names), key=self._order.__getitem__, default=None)
        for key, pattern in self._patterns.items():
            if exact is not None and self._order[exact] < self._order[key]:
                break
            for name in names:
                if match := pattern.fullmatch(name):
                    self._used.add(key)
                    return self._value(key, match, self._values[key])
        return None if exact is None else self.exact(exact)

    def exact(self, name: str) -> T | None:
        """Returns the value of the rule for this whole name, None when there is no such rule."""
        if name in self._values:
            self._used.add(name)
        return self._values.get(name)

    def unused(self) -> tuple[str, ...]:
        """Returns the patterns that no name has used so far."""
        return tuple(key for key in self._values if key not in self._used)

    def _compile(self, key: str) -> re.Pattern[str] | None:
        """Returns the expression for a pattern; None for a whole name."""
        is_name = not key.startswith(REGEX) and _WILDCARDS.isdisjoint(key)
        return None if is_name else compile_pattern(key)

    def _value(self, key: str, match: re.Match[str], value: T) -> T:
        return value


class Renames(FirstMatch[str]):
    r"""Rename rules, model name -> checkpoint name; the first rule that matches wins.

    A rule's key is a whole name, a prefix that ends in `/`, or after `re:` an expression over the
    whole name whose groups the value may use (`\1`). A name that no rule matches is kept.

    Raises:
      re.error: when an expression or its replacement is not valid.
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        super().__init__(rules)
        for key, pattern in self._patterns.items():
            try:
                if key.startswith(REGEX):
                    # Matches the empty string, so that the replacement is checked without a name.
                    re.sub(f"{pattern.pattern}|", rules[key], "")
            except IndexError as error:  # Unlike an unknown number, an unknown name of a group.
                raise re.error(str(error), rules[key]) from error

    def apply(self, name: str) -> str:
        """Returns the name in the checkpoint: by a rule, or else the same."""
        target = self.find(name)
        return name if target is None else target

    def _compile(self, key: str) -> re.Pattern[str] | None:
        if key.startswith(REGEX):
            return compile_pattern(key)
        return re.compile(re.escape(key) + ".*", re.DOTALL) if key.endswith("/") else None

    def _value(self, key: str, match: re.Match[str], value: str) -> str:
        if key.startswith(REGEX):
            return match.expand(value)
        return value + match.string[len(key) :]
