"""Spells values in overrides and in YAML.

Hydra is imported only where its grammar is needed, because programs that use `runner.warm_start`
also show problems of a plan, and do not need Hydra.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import OmegaConf

# Strings that need no quotes, except words that the grammar reads as something else.
_UNQUOTED = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = ("null", "true", "false", "nan", "inf")
_ESCAPED_IN_KEYS = re.compile(r"[\\()\[\]{}:=, ]")


Value = str | Sequence[int]


def quoted(text: str, *, double: bool = False) -> str:
    """Returns a string as one value of an override, in quotes where it needs them."""
    if _UNQUOTED.fullmatch(text) and text.lower() not in _WORDS:
        return text
    from hydra.core.override_parser.types import Quote, QuotedString

    spelling: str = QuotedString(text, Quote.double if double else Quote.single).with_quotes()
    return spelling


def spelled(value: object, string: Callable[[str], str] = quoted) -> str:
    """Returns a plain value as one value of an override, which keeps its type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return string(value)
    if isinstance(value, Mapping):
        keys = {key: _ESCAPED_IN_KEYS.sub(r"\\\g<0>", str(key)) for key in value}
        pairs = (f"{keys[key]}:{spelled(item, string)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(spelled(item, string) for item in value)}]"
    return str(value)


def override(key: str, value: Mapping[str, Value]) -> str | None:
    """Returns `++key=value`, quoted for a shell; None if Hydra's grammar cannot express it.

    The two plus signs set a key whether the configuration has it or not.
    """
    if "$" in str(value):
        return None  # It might be an interpolation.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    plain = {k: v if isinstance(v, str) else list(v) for k, v in value.items()}
    text = f"++{key}={spelled(plain, partial(quoted, double=True))}"
    try:
        # The grammar lacks keys with quotes or letters beyond ASCII, and reads some as numbers.
        read: Any = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return None
    return shlex.quote(text) if read == plain and all(isinstance(k, str) for k in read) else None


def yaml(key: str, value: Mapping[str, Value]) -> str:
    """Returns `key: {...}` in YAML's flow style, the keys and values quoted."""
    pairs = (f"{_quoted(name)}: {_quoted(item)}" for name, item in value.items())
    return f"{key}: {{{', '.join(pairs)}}}"


def _quoted(value: Value) -> str:
    # YAML reads what JSON writes; a backslash is clearer in single quotes, where it is itself.
    if isinstance(value, str) and "\\" in value and "'" not in value:
        return f"'{value}'"
    return json.dumps(value if isinstance(value, str) else list(value), ensure_ascii=False)


def plain(value: str) -> str:
    """Returns one value of an override without its quotes and escapes.

    Quotes stay in lists and mappings, and where the value would not be a string without them, as in
    `'1'` or `'null'`.
    """
    if not set(value) & set("'\"\\"):
        return value
    from hydra.core.override_parser.types import QuotedString

    element = _element(value)
    if isinstance(element, QuotedString) and element.text:
        element = element.text if isinstance(_element(element.text), str) else value
    return element if isinstance(element, str) else value


def is_plain(text: str) -> bool:
    """Whether the grammar reads a string as itself, without quotes."""
    from hydra.errors import HydraException

    try:
        return bool(_read(text) == text)
    except HydraException:
        return False


def _element(value: str) -> Any:
    """Returns the element that the grammar reads from a value; the value itself if malformed."""
    from hydra.errors import HydraException

    try:
        return _read(value)
    except HydraException:
        return value


def _read(value: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_rule(value, "element")


def plain_node(value: Any) -> Any:
    """Returns a value of Hydra's configuration as plain lists and mappings."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def number_or_text(text: str) -> float | int | str:
    """Returns the number that a string spells, or else the string."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
