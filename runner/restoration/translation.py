"""Translates the rules of a scaffold into one expression for each variable.

`rules` are expressions; `rename`, `convert`, `transpose` and `vocabulary` are shorter spellings:
the renamed tensor, `| CONVERSION`, `| transpose(...)`, `| tokens(...)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from runner.config.schema import ScaffoldConfig
from runner.restoration.expressions import Expression, Step, Tensor
from runner.restoration.layouts import Target
from runner.restoration.named_conversions import expanded
from runner.restoration.patterns import PATTERN_MAPS, FirstMatch, Renames
from runner.restoration.rules import Rules
from runner.restoration.vocabularies import read_vocabulary


class Translator:
    """The rules of one scaffold, and the ones that variables use.

    Attributes:
      read: reads the tokens of a vocabulary file, each file once.

    Raises:
      ValueError: when a rule is not valid.
    """

    def __init__(self, config: ScaffoldConfig) -> None:
        self.renames = Renames(config.rename)
        self._rules = Rules(config.rules)
        self._maps = {part: FirstMatch(getattr(config, part)) for part in PATTERN_MAPS}
        self.read = functools.cache(read_vocabulary)

    def unused(self) -> dict[str, tuple[str, ...]]:
        """Returns for each key of the scaffold the patterns that nothing has used so far."""
        unused = {part: rules.unused() for part, rules in self._maps.items()}
        return {"rename": self.renames.unused(), "rules": self._rules.unused(), **unused}

    def expression(
        self,
        names: Sequence[str],
        target: Target,
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
        maps = {part: rules.find(*names) for part, rules in self._maps.items()}
        by_rule = None if exact else self._rules.find(names)
        renamed = exact or (None if by_rule else self.renames.find(*names))
        unchanged = next((name for name in names if has(name)), names[0])
        expression = by_rule or Tensor(unchanged if renamed is None else renamed)
        is_named = by_rule is not None or renamed is not None
        if isinstance(expression, Tensor):  # An expression with steps of its own says them all.
            if maps["convert"] is not None:
                expression = Step(maps["convert"], expression)
            if maps["transpose"] is not None:
                expression = Step("transpose", expression, tuple(maps["transpose"]))
        if (vocabulary := maps["vocabulary"]) is not None:
            files = (vocabulary.old, vocabulary.new, vocabulary.axis)
            expression = Step("tokens", expression, files)
        return expanded(expression, target, has), is_named
