r"""Patterns with named parts over names of variables, and arithmetic on the parts.

`block_{n}_expand/` names the digits `n`, and its value may hold `{n}`, `{n+1}` or `{3*n-1}`:

    {n}       digits where the value computes with it, else characters without `/` and `.`
    {_n}      `_` and digits or nothing, which counts as 0: Keras's `dense`, `dense_1`
    {block/}  one or more parts of the path, up to and with a `/`
    * and ?   any characters, any one character
    re:...    a regular expression; its groups are `\1` or `{name}` in the value
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.restoration.patterns import REGEX

_HOLE = re.compile(r"\{([^{}]*)\}|\\(\d+)|\\g<(\w+)>")
_PART = re.compile(r"\{([^{}]*)\}|([*?])")
_NAME = re.compile(r"_?[A-Za-z]\w*/?")
_REST = "rest"
# Conversions replace it by a letter for each tensor, see `named_conversions`.
_NOT_A_PART = "gate"
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Pattern:
    """A pattern over names.

    Attributes:
      expression: matches names whole.
      parts: group of the expression -> name of the part, with the `/` of a path.
    """

    expression: re.Pattern[str]
    parts: Mapping[str, str]

    def match(self, name: str) -> dict[str, str] | None:
        """Returns the parts of a name, groups of a `re:` by number too; None if it differs.

        `rest` is what follows the module that a pattern is for; empty if it is for a whole name.
        """
        match = self.expression.fullmatch(name)
        if match is None:
            return None
        groups = {str(at): text or "" for at, text in enumerate(match.groups(), start=1)}
        named = {
            part: match[group] or ("0" if part.startswith("_") else "")
            for group, part in self.parts.items()
        }
        texts = {key: text or "" for key, text in match.groupdict().items()}
        return {_REST: "", **groups, **texts, **named}


def compile_rule(key: str, value: str) -> Pattern:
    """Compiles the pattern of a rule; `value` tells which of its parts are numbers.

    Raises:
      ValueError: when the pattern or a part in the value is not valid.
    """
    if key.startswith(REGEX):
        try:
            pattern = Pattern(re.compile(key.removeprefix(REGEX)), {})
        except re.error as error:
            raise ValueError(f"it is not a regular expression: {error}") from error
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
        if match[2]:
            expression += {"*": ".*", "?": "."}[match[2]]
            continue
        part = match[1]
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
    expression += re.escape(key[end:])
    return Pattern(
        re.compile(expression + f"(?P<{_REST}>.*)" * key.endswith("/"), re.DOTALL), parts
    )


def holes(value: str) -> list[str]:
    r"""Returns the contents of the braces of a rule's value, also of `\1`."""
    contents = ("".join(filter(None, match.groups())) for match in _HOLE.finditer(value))
    return [hole for hole in contents if hole != _NOT_A_PART]


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
