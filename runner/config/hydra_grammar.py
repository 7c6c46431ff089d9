"""Writes settings as a user types them: Hydra overrides, quoted for a shell, and YAML."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

# What Hydra's grammar allows in a key of a mapping, escaped where it must be; quotes it does not.
_KEY = re.compile(r"[A-Za-z0-9_/\-\\+.$%*@?|()\[\]{}:=, ]+")
# What would not be read as a text.
_RESERVED = re.compile(r"true|false|null|[+-]?(nan|inf)|[+-]?[\d_]*\.?[\d_]*(e[+-]?\d*)?", re.I)
_ESCAPED = re.compile(r"[\\()\[\]{}:=, ]")

Value = str | Sequence[int]


def override(key: str, value: str | Mapping[str, Value]) -> str | None:
    """Returns `++key=value`, quoted for a shell; None when Hydra's grammar cannot express it.

    The two plus signs set a key whether the configuration has it or not.

    Args:
      key: the whole key, e.g. `scaffolds.cnn.rename`.
      value: a plain word, or a mapping.
    """
    if isinstance(value, str):
        return f"++{key}={value}"
    if not all(_KEY.fullmatch(name) and not _RESERVED.fullmatch(name) for name in value):
        return None
    if any("$" in text for text in (*value, *map(str, value.values()))):
        return None  # It might be an interpolation.
    pairs = (f"{_escape(name)}:{_value(each)}" for name, each in value.items())
    return shlex.quote(f"++{key}={{{','.join(pairs)}}}")


def yaml(key: str, value: Mapping[str, Value]) -> str:
    """Returns `key: {...}` in YAML's flow style, the keys and values quoted."""
    pairs = (f"{_quoted(name)}: {_quoted(each)}" for name, each in value.items())
    return f"{key}: {{{', '.join(pairs)}}}"


def _escape(name: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", name)


def _value(value: Value) -> str:
    if not isinstance(value, str):
        return json.dumps(list(value), separators=(",", ":"))
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_/.\-]*", value) and not _RESERVED.fullmatch(value):
        return value
    # Backslashes are themselves but before a quote, also the one that ends the value.
    text = re.sub(r'(\\*)"', r'\1\1\\"', value)
    return '"' + re.sub(r"(\\+)$", r"\1\1", text) + '"'


def _quoted(value: Value) -> str:
    # YAML reads what JSON writes; a backslash is clearer in single quotes, where it is itself.
    if isinstance(value, str) and "\\" in value and "'" not in value:
        return f"'{value}'"
    return json.dumps(value if isinstance(value, str) else list(value), ensure_ascii=False)


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
