"""The keys of structured configs: their paths and types, and descriptions of these types."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

# Key of the metadata of a field that holds structured configs by name.
ENTRIES = "entries"

_WORDS: dict[Any, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a string",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
}


hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
"""Returns field -> annotation of a structured config."""


def entries(kind: type) -> dict[str, type]:
    """Returns the metadata of an untyped field that holds structured configs by name."""
    return {ENTRIES: kind}


def annotation(key: str, root: Any) -> Any:
    """Returns the annotation at a dotted key of a structured config; None for an unknown key.

    The annotation of a key below a mapping is that of the mapping's values.
    """
    found, entry = root, None
    for part in key.split(".") if key else ():
        if entry is not None:
            found, entry = entry, None
        elif dataclasses.is_dataclass(found):
            field = next((each for each in dataclasses.fields(found) if each.name == part), None)
            if field is None:
                return None
            found, entry = hints(found)[part], field.metadata.get(ENTRIES)
        elif found is Any or get_origin(found) in (dict, list):
            found = (Any, *get_args(found))[-1]
        else:
            return None
    return found


def keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a structured config in order; none for any other annotation."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def options(kind: Any) -> tuple[str, ...]:
    """Returns the values that an annotation allows; none where they cannot be listed."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(kind.__members__)
    return ("true", "false") if kind is bool else ()


def words(kind: Any) -> str:
    """Returns a description of the values that an annotation allows."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(words(each) for each in get_args(kind))
    if dataclasses.is_dataclass(kind):
        return f"a mapping with the keys {', '.join(keys(kind))}"
    if options(kind):
        return " or ".join(options(kind))
    return _WORDS.get(get_origin(kind) or kind, "another value")


def paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields every key below a structured config as a dotted path."""
    for key in keys(kind):
        yield f"{prefix}{key}"
        yield from paths(hints(kind)[key], f"{prefix}{key}.")


def unknown_keys(value: Any, kind: Any, prefix: str = "") -> list[str]:
    """Returns the dotted keys of a nested value that its structured config does not have.

    OmegaConf refuses them too, except those that an override adds with a plus.
    """
    if not dataclasses.is_dataclass(kind) or not isinstance(value, dict):
        return []
    found = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        known = key in keys(kind)
        found += unknown_keys(item, hints(kind)[key], f"{path}.") if known else [path]
    return found
