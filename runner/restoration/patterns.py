"""Patterns over names: globs, regular expressions after `re:`, and rename rules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

REGEX = "re:"
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


class FirstMatch(Generic[T]):
    """Finds the value of the first of several patterns that matches a name, and records its use.

    Raises:
      re.error: when a `re:` pattern is not valid.
    """

    def __init__(self, values: Mapping[str, T]) -> None:
        self._rules = [(key, self._compile(key, value)) for key, value in values.items()]
        self._used: set[str] = set()

    def find(self, name: str) -> T | None:
        """Returns what the first pattern that matches the whole name gives, None when none does."""
        for key, given in self._rules:
            found = given(name)
            if found is not None:
                self._used.add(key)
                return found
        return None

    def unused(self) -> tuple[str, ...]:
        """Returns the patterns that no name has used so far."""
        return tuple(key for key, _ in self._rules if key not in self._used)

    def _compile(self, key: str, value: T) -> Callable[[str], T | None]:
        pattern = compile_pattern(key)
        return lambda name: value if pattern.fullmatch(name) else None


class Renames(FirstMatch[str]):
    r"""Rename rules, model name -> checkpoint name; the first rule that matches wins.

    A rule's key is a whole name, a prefix that ends in `/`, or after `re:` an expression over the
    whole name whose groups the value may use (`\1`). A name that no rule matches is kept.

    Raises:
      re.error: when an expression or its replacement is not valid.
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        super().__init__(rules)
        self._exact = {
            key: value
            for key, value in rules.items()
            if not key.startswith(REGEX) and not key.endswith("/")
        }

    def apply(self, name: str) -> str:
        """Returns the name in the checkpoint: by a rule, or else the same."""
        target = self.find(name)
        return name if target is None else target

    def exact(self, name: str) -> str | None:
        """Returns what a rule for this whole name gives, None when there is no such rule."""
        target = self._exact.get(name)
        if target is not None:
            self._used.add(name)
        return target

    def _compile(self, key: str, value: str) -> Callable[[str], str | None]:
        if key.startswith(REGEX):
            expression = re.compile(key.removeprefix(REGEX))
            try:
                # Matches the empty string, so that the replacement is checked before any name is.
                re.sub(f"{expression.pattern}|", value, "")
            except IndexError as error:  # Unlike an unknown number, an unknown name is no re.error.
                raise re.error(str(error), value) from error

            def by_expression(name: str) -> str | None:
                match = expression.fullmatch(name)
                return match.expand(value) if match else None

            return by_expression
        if key.endswith("/"):
            return lambda name: value + name[len(key) :] if name.startswith(key) else None
        return lambda name: value if name == key else None
