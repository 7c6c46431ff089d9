"""Selects variables by patterns and maps their names to a checkpoint's names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
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
      names: the selected names, in the order given.
      unused: the patterns, included or excluded, that match none of the names.
    """

    names: tuple[str, ...]
    unused: tuple[str, ...]


def select(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> Selected:
    """Selects the names that match an `include` pattern and no `exclude` pattern.

    Patterns match whole names.

    Raises:
      re.error: when a `re:` pattern is not valid.
    """
    candidates = list(names)
    unused = []
    matched: dict[str, set[str]] = {}
    for pattern in (*include, *exclude):
        compiled = compile_pattern(pattern)
        matched[pattern] = {name for name in candidates if compiled.fullmatch(name)}
        if not matched[pattern]:
            unused.append(pattern)
    wanted = set().union(*(matched[pattern] for pattern in include))
    unwanted = set().union(*(matched[pattern] for pattern in exclude))
    return Selected(tuple(name for name in candidates if name in wanted - unwanted), tuple(unused))


@dataclass(frozen=True)
class Renamed:
    """The outcome of renaming.

    Attributes:
      names: model name -> checkpoint name, for every name given.
      unused: the rules that no name used.
    """

    names: Mapping[str, str]
    unused: tuple[str, ...]


def rename(names: Iterable[str], rules: Mapping[str, str]) -> Renamed:
    r"""Maps model names to checkpoint names; for each name the first rule that matches wins.

    A rule's key is a whole name, a prefix that ends in `/`, or after `re:` an expression over the
    whole name whose groups the value may use (`\1`). A name that no rule matches is kept.

    Raises:
      re.error: when an expression or its replacement is not valid.
    """
    compiled = [
        (key, re.compile(key.removeprefix(REGEX)) if key.startswith(REGEX) else None, value)
        for key, value in rules.items()
    ]
    renamed: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        renamed[name] = name
        for key, expression, value in compiled:
            if expression is not None:
                match = expression.fullmatch(name)
                target = _expand(match, value) if match else None
            elif key.endswith("/"):
                target = value + name.removeprefix(key) if name.startswith(key) else None
            else:
                target = value if name == key else None
            if target is not None:
                renamed[name] = target
                used.add(key)
                break
    return Renamed(renamed, tuple(key for key in rules if key not in used))


def _expand(match: re.Match[str], template: str) -> str:
    try:
        return match.expand(template)
    except IndexError as error:  # What `re` raises for the name of a group that is not there.
        raise re.error(str(error), template) from error
