"""Values in Hydra's grammar, and without what the grammar asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

_MARKS = frozenset("'\"\\")


def spelt(value: object, text: Callable[[str], str]) -> str:
    """Returns a value as one of an override.

    Args:
      value: it, or a list or mapping of such.
      text: spells a text.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        pairs = (f"{key}:{spelt(each, text)}" for key, each in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(spelt(each, text) for each in value)}]"
    return str(value)


def plain(value: str) -> str:
    """Returns one value of an override without its quotes and escapes.

    Quotes stay where they alone tell a text from something else, as in `'1'` or `'null'`, and
    within lists and mappings.
    """
    if _MARKS.isdisjoint(value):
        return value
    element = _parsed(value)
    if isinstance(element, str):
        return element
    if (
        isinstance(element, QuotedString)
        and element.text
        and isinstance(_parsed(element.text), str)
    ):
        return element.text
    return value


def _parsed(text: str) -> Any:
    """Returns what the grammar makes of a text, which is the text where it makes nothing of it."""
    try:
        return OverridesParser.create().parse_rule(text, "element")
    except HydraException:
        return text
