r"""Patterns over names: one language for all keys that take them.

    *, ?, [ab], [!ab]  any characters, also `/`; one character; one of these; one that is not
    {n}       digits where the value computes with it, else characters without `/` and `.`
    {_n}      `_` and digits or nothing, which counts as 0: Keras's `dense`, `dense_1`
    {block/}  one or more parts of the path, up to and with a `/`
    NAME/     a pattern that ends in `/` matches all names with this prefix: those below a module
    re:...    a regular expression; its groups are `\1` or `{name}` in the value

All but `NAME/` match whole names. A value may hold parts, `block_{n}_expand/: features.{n+1}.`.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

REGEX = "re:"
REST = "/"
"""Of the parts of a name, the one that follows the module that a pattern is for."""
# The keys of a scaffold that map patterns over variables to what happens to their tensors.
PATTERN_MAPS = ("convert", "transpose", "vocabulary")

_WILDCARDS = frozenset("*?[{")
_HOLE = re.compile(r"\{([^{}]*)\}|\\(\d+)|\\g<(\w+)>")
_PART = re.compile(r"\{([^{}]*)\}|([*?])|\[(!?)([^\]]+)\]")
_NAME = re.compile(r"_?[A-Za-z]\w*/?")
# Characters with a meaning between brackets in a regular expression, and none in a pattern.
_ESCAPED = str.maketrans({character: f"\\{character}" for character in "\\[^&~|"})
# Conversions replace it by a letter for each tensor, see `named_conversions`.
_NOT_A_PART = "gate"
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

T = TypeVar("T")


@dataclass(frozen=True)
class Pattern:
    """A pattern over names.

    Attributes:
      expression: matches names whole; for a module, its last group is the rest of the name.
      parts: group of the expression -> name of the part, with the `/` of a path.
      is_module: whether it is for the names that begin so.
    """

    expression: re.Pattern[str]
    parts: Mapping[str, str]
    is_module: bool = False

    def matches(self, name: str) -> bool:
        """Returns whether the pattern matches a name."""
        return self.expression.fullmatch(name) is not None

    def match(self, name: str) -> dict[str, str] | None:
        """Returns the parts of a name, groups of a `re:` by number too; None if it differs.

        `REST` is what follows the module that a pattern is for; empty if it is for a whole name.
        """
        match = self.expression.fullmatch(name)
        if match is None:
            return None
        groups = {str(at): text or "" for at, text in enumerate((match[0], *match.groups()))}
        named = {
            part: match[group] or ("0" if part.startswith("_") else "")
            for group, part in self.parts.items()
        }
        texts = {key: text or "" for key, text in match.groupdict().items()}
        rest = match[match.re.groups] if self.is_module else ""
        return {**groups, **texts, **named, REST: rest}


def compile_pattern(key: str, value: str = "") -> Pattern:
    """Compiles a pattern; `value`, if it has one, tells which of its parts are numbers.

    Raises:
      ValueError: when the pattern or a part in the value is not valid.
    """
    if key.startswith(REGEX):
        try:
            pattern = Pattern(re.compile(key.removeprefix(REGEX)), {})
        except re.error as error:
            raise ValueError(f"{key!r} is not a regular expression: {error}") from error
        known = {*pattern.expression.groupindex, *map(str, range(pattern.expression.groups + 1))}
    else:
        pattern = _compiled(key, *_numbers(value))
        known = {*pattern.parts.values()}
    for hole in holes(value):
        if lost := _names(hole) - known:
            raise ValueError(f"{{{hole}}} names no part of the pattern: {', '.join(sorted(lost))}")
    return pattern


def _compiled(key: str, numbers: set[str], letters: set[str]) -> Pattern:
    expression, parts, end = "", dict[str, str](), 0
    for match in _PART.finditer(key):
        expression += re.escape(key[end : match.start()])
        end = match.end()
        part, wildcard, negated, characters = match.groups()
        if wildcard:
            expression += {"*": ".*", "?": "."}[wildcard]
            continue
        if characters:
            expression += f"[{'^' if negated else ''}{characters.translate(_ESCAPED)}]"
            continue
        if not _NAME.fullmatch(part):
            raise ValueError(f"{{{part}}} in the pattern is not the name of a part")
        group = f"part_{part.strip('_/')}"
        if group in parts:
            expression += f"(?P={group})"
            continue
        parts[group] = part
        if part.endswith("/"):
            expression += f"(?P<{group}>(?:[^/]+/)+)"
        elif part.startswith("_"):
            expression += rf"(?:_(?P<{group}>\d+))?"
        else:
            kind = r"\d+" if part in numbers else "[a-z]" if part in letters else "[^/.]+"
            expression += f"(?P<{group}>{kind})"
    is_module = key.endswith("/")
    expression += re.escape(key[end:]) + "(.*)" * is_module
    try:
        return Pattern(re.compile(expression, re.DOTALL), parts, is_module)
    except re.error as error:  # Of characters that are in the wrong order.
        raise ValueError(f"{key!r} is not a pattern: {error}") from error


def holes(value: str) -> list[str]:
    r"""Returns the contents of the braces of a rule's value, also of `\1`."""
    contents = ("".join(filter(None, match.groups())) for match in _HOLE.finditer(value))
    return [hole for hole in contents if hole != _NOT_A_PART]


def is_literal(text: str) -> bool:
    """Whether a value is a plain string: nothing in it stands for a part."""
    return _HOLE.search(text) is None


def substitute(value: str, parts: Mapping[str, str]) -> str:
    """Returns the value with the parts of a name in it.

    Raises:
      ValueError: when a computation is not possible, such as a division by zero.
    """

    def hole(match: re.Match[str]) -> str:
        content = "".join(filter(None, match.groups()))
        if content == _NOT_A_PART:
            return match[0]
        return parts[content] if content in parts else str(_computed(_tree(content), parts))

    return _HOLE.sub(hole, value) if "{" in value or "\\" in value else value


@functools.cache
def _tree(hole: str) -> ast.expr:
    try:
        return ast.parse(hole.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{{{hole}}} is not a part or a computation with one") from error


def _computed(tree: ast.expr, parts: Mapping[str, str]) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in parts and parts[name].isdecimal():
            return int(parts[name])
        case ast.Call(func=ast.Name(id="ord"), args=[ast.Name(id=name)]) if name in parts:
            return ord(parts[name])
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _OPERATORS:
            numbers = _computed(left, parts), _computed(right, parts)
            try:
                return _OPERATORS[type(symbol)](*numbers)
            except ZeroDivisionError as error:
                raise ValueError(f"{ast.unparse(tree)} divides by zero") from error
    raise ValueError(f"{{{ast.unparse(tree)}}} is not a computation: it knows + - * // % and ord")


def _names(hole: str) -> set[str]:
    """Returns the names of the parts in a hole, and checks a computation with them."""
    if _NAME.fullmatch(hole) or hole.isdecimal():
        return {hole}
    tree = _tree(hole)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"ord"}
    _computed(tree, dict.fromkeys(names, "1"))
    return names


def _numbers(value: str) -> tuple[set[str], set[str]]:
    """Returns the parts that the value computes with: numbers, and letters within `ord`."""
    numbers, letters = set[str](), set[str]()
    for hole in holes(value):
        if not _NAME.fullmatch(hole):
            inside = set(re.findall(r"ord\(\s*(\w+)\s*\)", hole))
            letters |= inside
            numbers |= _names(hole) - inside
    return numbers, letters


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

    A pattern may match the other name that `addresses` has for a name instead.

    Raises:
      ValueError: when a pattern is not valid.
    """
    candidates, addresses = list(names), addresses or {}
    others = {name: addresses[name] for name in candidates if name in addresses}
    matched: dict[str, set[str]] = {}
    for pattern in (*include, *exclude):
        matches = compile_pattern(pattern).matches
        matched[pattern] = {*filter(matches, candidates)}
        matched[pattern].update(name for name, address in others.items() if matches(address))
    included = frozenset().union(*(matched[pattern] for pattern in include))
    excluded = frozenset().union(*(matched[pattern] for pattern in exclude))
    unused = tuple(pattern for pattern in matched if not matched[pattern])
    return Selected(included - excluded, excluded, unused)


class FirstMatch(Generic[T]):
    """Finds the value of the first of several patterns that matches a name, and records its use.

    Raises:
      ValueError: when a pattern is not valid.
    """

    def __init__(self, values: Mapping[str, T]) -> None:
        self._values = {**values}
        self._patterns = {
            key: self._compile(key, value)
            for key, value in values.items()
            if key.startswith(REGEX) or key.endswith("/") or not _WILDCARDS.isdisjoint(key)
        }
        self._names = values.keys() - self._patterns.keys()
        self._order = {key: at for at, key in enumerate(values)}
        self._used: set[str] = set()

    def find(self, *names: str) -> T | None:
        """Returns the value of the first pattern that matches one of the names, or None."""
        # A table of a thousand names is looked up, not tried one by one.
        exact = min(self._names.intersection(names), key=self._order.__getitem__, default=None)
        for key, pattern in self._patterns.items():
            if exact is not None and self._order[exact] < self._order[key]:
                break
            for name in names:
                if (parts := pattern.match(name)) is not None:
                    self._used.add(key)
                    return self._value(self._values[key], parts)
        return None if exact is None else self.exact(exact)

    def exact(self, name: str) -> T | None:
        """Returns the value of the rule for this whole name, None when there is no such rule."""
        if name in self._values:
            self._used.add(name)
        return self._values.get(name)

    def unused(self) -> tuple[str, ...]:
        """Returns the patterns that no name has used so far."""
        return tuple(key for key in self._values if key not in self._used)

    def _compile(self, key: str, value: T) -> Pattern:
        return compile_pattern(key)

    def _value(self, value: T, parts: Mapping[str, str]) -> T:
        return value


class Renames(FirstMatch[str]):
    """Rename rules, model name -> checkpoint name; the first rule that matches wins.

    Raises:
      ValueError: when a pattern or its value is not valid.
    """

    def apply(self, name: str) -> str:
        """Returns the name in the checkpoint: by a rule, or else the same."""
        target = self.find(name)
        return name if target is None else target

    def _compile(self, key: str, value: str) -> Pattern:
        return compile_pattern(key, value)

    def _value(self, value: str, parts: Mapping[str, str]) -> str:
        return substitute(value, parts) + parts[REST]
