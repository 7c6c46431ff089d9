"""Maps the model's names to a checkpoint's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from runner.restoration.selection import REGEX


class Renames:
    r"""Rename rules, model name -> checkpoint name; the first rule that matches wins.

    A rule's key is a whole name, a prefix that ends in `/`, or after `re:` an expression over the
    whole name whose groups the value may use (`\1`). A name that no rule matches is kept.
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        """Compiles the rules.

        Raises:
          re.error: when an expression or its replacement is not valid.
        """
        self._rules = [(key, _compile(key, value)) for key, value in rules.items()]
        self._exact = {key: value for key, value in rules.items() if _is_exact(key)}
        self._used: set[str] = set()

    def find(self, name: str) -> str | None:
        """Returns the name in the checkpoint that a rule gives, None when no rule matches."""
        for key, renamed in self._rules:
            target = renamed(name)
            if target is not None:
                self._used.add(key)
                return target
        return None

    def apply(self, name: str) -> str:
        """Returns the name in the checkpoint: by a rule, or else the same."""
        target = self.find(name)
        return name if target is None else target

    def exact(self, name: str) -> str | None:
        """Returns what a rule for this whole name gives, None when there is none."""
        target = self._exact.get(name)
        if target is not None:
            self._used.add(name)
        return target

    def unused(self) -> tuple[str, ...]:
        """Returns the rules that no name has used so far."""
        return tuple(key for key, _ in self._rules if key not in self._used)


def _is_exact(key: str) -> bool:
    return not key.startswith(REGEX) and not key.endswith("/")


def _compile(key: str, value: str) -> Callable[[str], str | None]:
    if key.startswith(REGEX):
        expression = re.compile(key.removeprefix(REGEX))
        _check_replacement(expression, value)

        def by_expression(name: str) -> str | None:
            match = expression.fullmatch(name)
            return match.expand(value) if match else None

        return by_expression
    if key.endswith("/"):
        return lambda name: value + name[len(key) :] if name.startswith(key) else None
    return lambda name: value if name == key else None


def _check_replacement(expression: re.Pattern[str], value: str) -> None:
    """Raises re.error for a replacement that no match could expand."""
    groups = "".join(f"(?P<{name}>)" if name else "()" for name in _groups(expression))
    try:
        re.sub(groups, value, "")
    except IndexError as error:  # An unknown group name; re says `re.error` of an unknown number.
        raise re.error(str(error), value) from error


def _groups(expression: re.Pattern[str]) -> list[str]:
    names = {number: name for name, number in expression.groupindex.items()}
    return [names.get(number, "") for number in range(1, expression.groups + 1)]
