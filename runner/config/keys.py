"""Keys: their paths and types in structured configs, and their names in nested plain values."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from runner.config.choices import INTERNAL

# Key of the metadata of a field that holds structured configs by name.
ENTRIES = "entries"
# The same of a field that holds a structured config, or a short form of it.
SECTION = "section"
# The same of a field that holds `_target_` nodes; its value is a `TargetField`.
TARGET = "target"


@dataclasses.dataclass(frozen=True)
class TargetField:
    """How a field holds nodes with a `_target_`.

    Attributes:
      by_name: whether it maps names to nodes; otherwise it is one node.
      called: whether the target is called with further arguments.
      measure: whether a name that Keras knows, or one node for each output, will do.
    """

    by_name: bool = False
    called: bool = False
    measure: bool = False


def target_nodes(
    config: Any, kind: Any, prefix: str = ""
) -> Iterator[tuple[str, Any, TargetField]]:
    """Yields the dotted key and the node of everything that may have a `_target_`.

    Args:
      config: a structured config, or its plain values.
      kind: the structured config's class.
      prefix: the dotted key of the structured config and a dot; empty for the root.
    """
    values = config if isinstance(config, Mapping) else vars(config)
    for field in dataclasses.fields(kind):
        if field.name not in values:
            continue  # `devices` may have a few of its keys.
        value, key = values[field.name], f"{prefix}{field.name}"
        target, inner = field.metadata.get(TARGET), hints(kind)[field.name]
        if target is None:
            if dataclasses.is_dataclass(inner) and (isinstance(value, Mapping | inner)):
                yield from target_nodes(value, inner, f"{key}.")
        elif target.by_name:
            yield from ((f"{key}.{name}", node, target) for name, node in value.items())
        else:
            yield key, value, target


def _hints(kind: Any) -> dict[str, Any]:
    sections = {field.name: field.metadata.get(SECTION) for field in dataclasses.fields(kind)}
    return {name: sections.get(name) or hint for name, hint in get_type_hints(kind).items()}


hints: Callable[[Any], dict[str, Any]] = cache(_hints)
"""Returns field -> annotation of a structured config, also where the field has a short form."""


def annotation(key: str, root: Any) -> Any:
    """Returns the annotation at a dotted key of a structured config; None for an unknown key.

    A key below a mapping has the annotation of the mapping's values.
    """
    kind, entry = root, None
    for part in key.split(".") if key else ():
        if entry is not None:
            kind, entry = entry, None
        elif dataclasses.is_dataclass(kind):
            fields = {field.name: field for field in dataclasses.fields(kind)}
            if part not in fields:
                return None
            kind, entry = hints(kind)[part], fields[part].metadata.get(ENTRIES)
        elif kind is not Any:
            # In an optional mapping, the mapping.
            container = next(
                (hint for hint in (kind, *get_args(kind)) if get_origin(hint) in (dict, list)), None
            )
            if container is None:
                return None
            kind = get_args(container)[-1]
    return kind


_WORDS: dict[Any, str] = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "string",
    type(None): "null",
    Any: "any value",
}


def words(kind: Any, enum: str = "one of the values below") -> str:
    """Describes the values that an annotation allows; `enum` stands for those that are listed."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(words(argument, enum) for argument in arguments)
    if is_enum(kind):
        return enum
    if origin is list:
        return f"list of {_plural(arguments[0])}"
    if origin is dict:
        return "mapping" if arguments[1] is Any else f"mapping to {_plural(arguments[1])}"
    if dataclasses.is_dataclass(kind):
        return f"mapping with the keys {', '.join(keys(kind))}"
    return _WORDS[kind]


def _plural(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"lists of {_plural(get_args(kind)[0])}"
    if dataclasses.is_dataclass(kind):
        return "mappings with the keys below"
    return "the values below" if is_enum(kind) else f"{words(kind)}s"


def misfits(values: Mapping[Any, Any], root: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys, and values, of a list or mapping where another kind of value belongs.

    OmegaConf does not name the key, or accepts the value where it belongs to a list or a mapping.
    """
    for name, value in values.items():
        key = f"{prefix}{name}"
        if not _admits(annotation(key, root), value):
            yield key, value
            continue
        below = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(below, Mapping):
            yield from misfits(below, root, f"{key}.")


def _admits(kind: Any, value: object) -> bool:
    """Whether an annotation admits a list or a mapping; True for any other value."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, list):
        return any(one in (None, Any) or get_origin(one) is list for one in kinds)
    mappings = (
        one in (None, Any) or get_origin(one) is dict or dataclasses.is_dataclass(one)
        for one in kinds
    )
    return not isinstance(value, Mapping) or any(mappings)


def is_enum(kind: Any) -> bool:
    """Whether an annotation is an enum."""
    return isinstance(kind, type) and issubclass(kind, Enum)


def keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a structured config in order; an empty tuple for another annotation."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def options(kind: Any) -> tuple[str, ...]:
    """Returns the values that an annotation allows, if they can be listed."""
    if is_enum(kind):
        return tuple(name for name, member in kind.__members__.items() if member not in INTERNAL)
    if kind is bool:
        return ("true", "false")
    return tuple(name for argument in get_args(kind) for name in options(argument))


def paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields every key below a structured config as a dotted path."""
    for key in keys(kind):
        yield f"{prefix}{key}"
        yield from paths(hints(kind)[key], f"{prefix}{key}.")


def unknown_keys(value: Any, kind: Any, prefix: str = "") -> list[str]:
    """Returns the dotted keys of a nested value that its structured config does not have.

    OmegaConf refuses them too, unless an override adds them with a plus.
    """
    if not dataclasses.is_dataclass(kind) or not isinstance(value, dict):
        return []
    unknown = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        exists = key in keys(kind)
        unknown += unknown_keys(item, hints(kind)[key], f"{path}.") if exists else [path]
    return unknown


def flatten(config: Mapping[str, object]) -> dict[str, object]:
    """Returns every value of a plain nested configuration under its dotted name.

    `{"model": {"units": [8, 4]}}` gives `{"model.units.0": 8, "model.units.1": 4}`. An empty
    mapping or list is itself a value, enums give their names, and a key with a dot or bracket
    in it is written `["like.this"]`.
    """
    return dict(leaves("", config))


def leaves(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields (dotted name below `prefix`, value) of every value in a nested value."""
    items: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, child in items:
        yield from leaves(_joined(prefix, key), child)
    if not items and prefix:
        yield prefix, value.name if isinstance(value, Enum) else value


def _joined(prefix: str, key: object) -> str:
    name = key.name if isinstance(key, Enum) else str(key)
    if not name or any(mark in name for mark in ".[]"):
        return f"{prefix}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{prefix}.{name}" if prefix else name
