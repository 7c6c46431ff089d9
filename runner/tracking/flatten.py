"""A nested configuration as one level of dotted names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum

from runner.errors import Problem, TrackingError


def flatten(config: Mapping[str, object]) -> dict[str, object]:
    """Returns every value of a plain nested configuration under its dotted name.

    `{"model": {"units": [8, 4]}}` gives `{"model.units.0": 8, "model.units.1": 4}`. An empty
    mapping or list is a value of its own, enums give their names, and a key with a dot or
    bracket in it is written `["like.this"]`, so that no two places share a name.

    Args:
      config: dicts, lists and tuples, nested to any depth, with other values as leaves.

    Raises:
      TrackingError: two keys of one mapping are written alike, such as `1` and `"1"`.
    """
    flat: dict[str, object] = {}
    for name, value in _leaves("", config):
        if name in flat:
            raise TrackingError(
                Problem(
                    state=f"the configuration has two values named {name!r}",
                    cause="two keys of one mapping are written alike, such as 1 and '1'",
                    remedy="rename one of the two keys",
                )
            )
        flat[name] = value
    return flat


def _leaves(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    items: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, child in items:
        yield from _leaves(_joined(prefix, key), child)
    if not items and prefix:
        yield prefix, value.name if isinstance(value, Enum) else value


def _joined(prefix: str, key: object) -> str:
    name = key.name if isinstance(key, Enum) else str(key)
    if not name or any(mark in name for mark in ".[]"):
        return f"{prefix}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{prefix}.{name}" if prefix else name
