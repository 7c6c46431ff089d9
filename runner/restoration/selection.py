"""Selects names by patterns: globs, and regular expressions after `re:`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REGEX = "re:"


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a glob, or after `re:` a regular expression; match it with `fullmatch`.

    In a glob `*` matches any characters, `/` among them.

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


def select(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> Selected:
    """Selects the names that match an `include` pattern and no `exclude` pattern.

    Patterns match whole names.

    Raises:
      re.error: when a `re:` pattern is not valid.
    """
    candidates = list(names)
    matched: dict[str, set[str]] = {}
    for pattern in (*include, *exclude):
        compiled = compile_pattern(pattern)
        matched[pattern] = {name for name in candidates if compiled.fullmatch(name)}
    included = frozenset().union(*(matched[pattern] for pattern in include))
    excluded = frozenset().union(*(matched[pattern] for pattern in exclude))
    unused = tuple(pattern for pattern, found in matched.items() if not found)
    return Selected(included - excluded, excluded, unused)


class FirstMatch:
    """Looks names up among patterns; the first pattern that matches wins."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Compiles the patterns.

        Raises:
          re.error: when a `re:` pattern is not valid.
        """
        self._compiled = [(key, compile_pattern(key)) for key in patterns]
        self.used: set[str] = set()

    def find(self, name: str) -> str | None:
        """Returns the first pattern that matches the whole name, and counts it as used."""
        for key, compiled in self._compiled:
            if compiled.fullmatch(name):
                self.used.add(key)
                return key
        return None

    def unused(self) -> tuple[str, ...]:
        """Returns the patterns that no name found."""
        return tuple(key for key, _ in self._compiled if key not in self.used)
