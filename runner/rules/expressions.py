"""Expressions over the tensors of a checkpoint: `sum(a, b) | transpose(1, 0) | [2:]`.

    expression: SOURCE | STEP | STEP ...
    SOURCE:     a tensor's name, 'quoted' where it holds one of | , ( ) [ ] = or a space; or a
                function of expressions: sum(A, B), concat(A, B, axis=0)
    STEP:       transpose(1, 0), reshape, [2:, 0:768], or a named conversion

Names and arguments may hold parts of the variable's name, `layer{n+1}.weight`, see `patterns`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from runner.config.spelling import number_or_text

Argument: TypeAlias = int | float | str
# The name of the step that brackets are.
SLICE = "slice"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint, by its name."""

    name: str


@dataclass(frozen=True)
class Function:
    """A function that makes one tensor of several, a key of `steps.FUNCTIONS`."""

    name: str
    operands: tuple[Expression, ...]
    keywords: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step that changes one tensor, a key of `steps.STEPS`; open arguments are strings."""

    name: str
    operand: Expression
    arguments: tuple[Argument, ...] = ()
    keywords: Mapping[str, Argument] = field(default_factory=dict)


Expression: TypeAlias = Tensor | Function | Step


def names_in(expression: Expression) -> Iterator[str]:
    """Yields the names of an expression's tensors, in the order in which it takes them."""
    match expression:
        case Tensor(name):
            yield name
        case Step(operand=operand):
            yield from names_in(operand)
        case Function(operands=operands):
            for operand in operands:
                yield from names_in(operand)


def fill(expression: Expression, change: Callable[[str], str]) -> Expression:
    """Returns the expression with its names and its open arguments changed."""
    match expression:
        case Tensor(name):
            return Tensor(change(name))
        case Step(name, operand, arguments, keywords):
            filled = tuple(_filled(argument, change) for argument in arguments)
            return Step(name, fill(operand, change), filled, _fill_all(keywords, change))
        case Function(name, operands, keywords):
            inner = tuple(fill(operand, change) for operand in operands)
            return Function(name, inner, _fill_all(keywords, change))


def _fill_all(
    keywords: Mapping[str, Argument], change: Callable[[str], str]
) -> dict[str, Argument]:
    return {key: _filled(argument, change) for key, argument in keywords.items()}


def _filled(argument: Argument, change: Callable[[str], str]) -> Argument:
    return number_or_text(change(argument)) if isinstance(argument, str) else argument


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>'[^']*'|"[^"]*")
    | (?P<slice>\[[^\]]*\])
    | (?P<mark>[|,()=])
    | (?P<bare>(?:\{[^{}]*\}|[^|,()\[\]=\s'"{}])+)
    )\s*""",
    re.VERBOSE,
)


_BARE = re.compile(r"""(?:\{[^{}]*\}|[^|,()\[\]=\s'"{}])*""")


def in_expression(name: str) -> str | None:
    """Returns a tensor's name as expressions have it, in quotes if need be.

    It is None where no quotes serve: the name holds both kinds of them.
    """
    if _BARE.fullmatch(name):
        return name
    return next((f"{quote}{name}{quote}" for quote in "'\"" if quote not in name), None)


def parse(text: str) -> Expression:
    """Parses an expression.

    Raises:
      ValueError: when it is not one.
    """
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[position:].strip()!r} is not a name, a step or a slice")
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    parser = _Parser(tokens)
    expression = parser.expression()
    if parser.peek():
        raise ValueError(f"{parser.peek()!r} is not expected there")
    return expression


class _Parser:
    """Reads the tokens (kind, text) of one expression, from left to right."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    def peek(self, ahead: int = 0) -> str:
        """Returns the next token, or an empty string at the end."""
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def expression(self) -> Expression:
        expression = self._source()
        while self.peek() == "|":
            self._take("|")
            expression = self._step(expression)
        return expression

    def _source(self) -> Expression:
        if self.peek() in ("", "|"):
            return Tensor("")  # A module at the root of the checkpoint.
        kind, text = self._next("bare", "quoted")
        if kind == "bare" and self.peek() == "(":
            return self._function(text)
        return Tensor(text if kind == "bare" else text[1:-1])

    def _function(self, name: str) -> Expression:
        operands: list[Expression] = []
        keywords = self._in_brackets(lambda: operands.append(self.expression()))
        return Function(name, tuple(operands), keywords)

    def _step(self, operand: Expression) -> Expression:
        kind, name = self._next("bare", "slice")
        if kind == "slice":
            return Step(SLICE, operand, (name[1:-1],))
        arguments: list[Argument] = []
        keywords: dict[str, Argument] = {}
        if self.peek() == "(":
            keywords = self._in_brackets(lambda: arguments.append(self._argument()))
        return Step(name, operand, tuple(arguments), keywords)

    def _in_brackets(self, read: Callable[[], None]) -> dict[str, Argument]:
        """Reads `(A, B, key=value)`, where `read` takes each without a key; returns the others."""
        keywords: dict[str, Argument] = {}
        self._take("(")
        while self.peek() != ")":
            if self.peek(1) == "=":
                key = self._next("bare")[1]
                self._take("=")
                keywords[key] = self._argument()
            else:
                read()
            if self.peek() != ")":
                self._take(",")
        self._take(")")
        return keywords

    def _argument(self) -> Argument:
        kind, text = self._next("bare", "quoted")
        return text[1:-1] if kind == "quoted" else number_or_text(text)

    def _next(self, *kinds: str) -> tuple[str, str]:
        if self._at == len(self._tokens) or self._tokens[self._at][0] not in kinds:
            raise ValueError(f"{self.peek() or 'the end'!r} where a name is expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, mark: str) -> None:
        if self.peek() != mark:
            raise ValueError(f"{self.peek() or 'the end'!r} where {mark!r} is expected")
        self._at += 1
