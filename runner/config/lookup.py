"""Answers what the structured configs allow at a key: its type, its choices, the keys below it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from runner.config.schema import RunConfig, ScaffoldConfig

_WORDS: dict[Any, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a text",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
}


def annotation(key: str) -> Any:
    """Returns the annotation at a dotted key, `Any` below an open mapping, None for no such key.

    An entry of `scaffolds` counts as a `ScaffoldConfig`, whatever its name or index.
    """
    found: Any = RunConfig
    for depth, part in enumerate(key.split(".") if key else ()):
        if depth == 1 and key.startswith("scaffolds."):
            found = ScaffoldConfig
        elif dataclasses.is_dataclass(found):
            if part not in keys(found):
                return None
            found = get_type_hints(found)[part]
        elif found is Any or get_origin(found) in (dict, list):
            found = Any
        else:
            return None
    return found


def keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a structured config, in its order; none of another annotation."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def choices(kind: Any) -> tuple[str, ...]:
    """Returns the values that may be typed for an annotation, where they can be listed."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(kind.__members__)
    return ("true", "false") if kind is bool else ()


def words(kind: Any) -> str:
    """Says in words what values an annotation allows."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(words(each) for each in get_args(kind))
    if dataclasses.is_dataclass(kind):
        return f"a mapping with the keys {', '.join(keys(kind))}"
    if choices(kind):
        return " or ".join(choices(kind))
    return _WORDS.get(get_origin(kind) or kind, "another value")


def paths(kind: Any = RunConfig, prefix: str = "") -> Iterator[str]:
    """Yields every key below a structured config as a dotted path."""
    for key in keys(kind):
        yield f"{prefix}{key}"
        yield from paths(get_type_hints(kind)[key], f"{prefix}{key}.")


def unknown_keys(value: Any, kind: Any = RunConfig, prefix: str = "") -> list[str]:
    """Returns the dotted keys of a nested value that its structured config does not have.

    OmegaConf refuses them as well, except those that an override adds by a plus.
    """
    if not dataclasses.is_dataclass(kind) or not isinstance(value, dict):
        return []
    hints = get_type_hints(kind)
    found = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        found += unknown_keys(item, hints[key], f"{path}.") if key in hints else [path]
    return found
