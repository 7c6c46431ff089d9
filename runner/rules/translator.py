"""The rules of a scaffold: pattern over variables -> expression over tensors.

`rename`, `convert`, `transpose` and `vocabulary` are shorter spellings: the renamed tensor,
`| CONVERSION`, `| transpose(...)`, `| tokens(...)`. `Translator` makes one expression of all.

In `rules`, a key that ends in `/` is a module rule: it renames the beginning of names, and may name
the conversion of the whole module. Any other key matches whole names. Of the rules that match, the
one that leaves the shortest rest of the name wins, and among these the first: rules of roles,
`{block/}norm/`, may stand after or before the rules of blocks, which tell what `{block/}` is in the
checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.config.schema import ScaffoldConfig
from runner.rules.expressions import Expression, Function, Step, Tensor, fill, parse
from runner.rules.named_conversions import expanded
from runner.rules.patterns import (
    PATTERN_MAPS,
    REST,
    FirstMatch,
    Pattern,
    Renames,
    compile_pattern,
    substitute,
)
from runner.rules.steps import check
from runner.rules.target import ConvertedVariable
from runner.rules.vocabularies import read_vocabulary


@dataclass(frozen=True)
class Rule:
    """One rule, parsed."""

    key: str
    pattern: Pattern
    expression: Expression


def parse_rule(key: str, value: str) -> Rule:
    """Parses a rule.

    Raises:
      ValueError: when its pattern or its expression is not valid.
    """
    rule = Rule(key, compile_pattern(key, value), parse(value))
    check(rule.expression)
    if rule.pattern.is_module and isinstance(_source(rule.expression), Function):
        raise ValueError("a rule for a module, which ends in `/`, has no function of tensors")
    return rule


def _source(expression: Expression) -> Expression:
    while isinstance(expression, Step):
        expression = expression.operand
    return expression


class Rules:
    """The key `rules` of a scaffold, and the rules that variables use.

    Raises:
      ValueError: when a rule is not valid.
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules = [parse_rule(key, value) for key, value in rules.items()]
        self._modules = [rule for rule in self._rules if rule.pattern.is_module]
        self._used: set[str] = set()

    def find(self, names: Sequence[str]) -> Expression | None:
        """Returns the expression for a variable with one or more names; None without a rule.

        Raises:
          ValueError: when a computation in it is not possible.
        """
        match = self.match(names)
        return match and self._filled(*match)

    def match(self, names: Sequence[str]) -> tuple[Rule, dict[str, str]] | None:
        """Returns the rule for a variable, and the parts of its name; None without a rule."""
        return self._closest(
            [
                (rule, parts)
                for rule in self._rules
                for name in names
                if (parts := rule.pattern.match(name)) is not None
            ]
        )

    def _closest(
        self, matches: Sequence[tuple[Rule, dict[str, str]]]
    ) -> tuple[Rule, dict[str, str]] | None:
        """Returns the match that leaves the shortest rest of the name, and records its use."""
        if not matches:
            return None
        match = min(matches, key=lambda match: len(match[1][REST]))
        self._used.add(match[0].key)
        return match

    def unused(self) -> tuple[str, ...]:
        """Returns the patterns of the rules that no variable has used so far."""
        return tuple(rule.key for rule in self._rules if rule.key not in self._used)

    def _filled(self, rule: Rule, parts: dict[str, str]) -> Expression:
        for part in rule.pattern.parts.values():
            if part.endswith("/"):
                parts[part] = self._module(parts[part])
        rest = parts[REST]
        source = _source(rule.expression)

        def change(text: str) -> str:
            return substitute(text, parts)

        expression = fill(rule.expression, change)
        return _with_rest(expression, rest) if rest and isinstance(source, Tensor) else expression

    def _module(self, path: str) -> str:
        """Returns the beginning of names in the checkpoint for a path that ends in `/`."""
        match = self._closest(
            [
                (rule, parts)
                for rule in self._modules
                if (parts := rule.pattern.match(path)) is not None
                and all(parts[part] != path for part in rule.pattern.parts.values())
            ]
        )
        source = _source(self._filled(*match)) if match else None
        return source.name if isinstance(source, Tensor) else path


def _with_rest(expression: Expression, rest: str) -> Expression:
    match expression:
        case Step(name, operand, arguments, keywords):
            return Step(name, _with_rest(operand, rest), arguments, keywords)
        case Tensor(name):
            return Tensor(name + rest)
    return expression


class Translator:
    """Translates all rules of a scaffold, and records which ones variables use.

    Attributes:
      read: reads the tokens of a vocabulary file, each file once.

    Raises:
      ValueError: when a rule is not valid.
    """

    def __init__(self, config: ScaffoldConfig) -> None:
        self.renames = Renames(config.rename)
        self._rules = Rules(config.rules)
        maps = {part: getattr(config, part) for part in PATTERN_MAPS}
        self._maps = {part: FirstMatch(rules) for part, rules in maps.items() if rules}
        self.read = functools.cache(read_vocabulary)

    def unused(self) -> dict[str, tuple[str, ...]]:
        """Returns for each key of the scaffold the patterns that nothing has used so far."""
        unused = {part: rules.unused() for part, rules in self._maps.items()}
        return {"rename": self.renames.unused(), "rules": self._rules.unused(), **unused}

    def expression(
        self,
        names: Sequence[str],
        target: ConvertedVariable,
        has: Callable[[str], bool],
        exact: str | None = None,
    ) -> tuple[Expression, bool]:
        """Returns the expression for a variable, and whether a rule names its tensors.

        Args:
          names: the variable's name, and its address.
          target: the variable.
          has: tells whether the checkpoint has a tensor of a name.
          exact: the name of the tensor, where a rule for a slot tells it.

        Raises:
          ValueError: when a rule cannot be applied to it.
        """
        steps = {part: rules.find(*names) for part, rules in self._maps.items()}
        by_rule = None if exact else self._rules.find(names)
        renamed = exact or (None if by_rule else self.renames.find(*names))
        is_named = by_rule is not None or renamed is not None
        if renamed is None:
            renamed = next(filter(has, names), names[0])
        expression = by_rule or Tensor(renamed)
        if isinstance(expression, Tensor):  # An expression with steps of its own says them all.
            if (conversion := steps.get("convert")) is not None:
                expression = Step(conversion, expression)
            if (axes := steps.get("transpose")) is not None:
                expression = Step("transpose", expression, tuple(axes))
        if (vocabulary := steps.get("vocabulary")) is not None:
            files = (vocabulary.old, vocabulary.new, vocabulary.axis)
            expression = Step("tokens", expression, files)
        return expanded(expression, target, has), is_named
