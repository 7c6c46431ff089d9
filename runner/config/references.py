"""References from the configuration to what exists only once the graph is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from runner.errors import Problem, nearest

KINDS = ("graph", "run")
_REFERENCE = re.compile(rf"\$\{{({'|'.join(KINDS)}):([^}}]+)\}}")


def register_resolvers() -> None:
    """Makes `${graph:NAME}` and `${run:NAME}` values that resolve to their own spelling.

    So a resolved configuration is printed, hashed, recorded and composed again unchanged; only
    `build_target` puts the object in its place.
    """
    for kind in KINDS:
        if not OmegaConf.has_resolver(kind):
            OmegaConf.register_new_resolver(kind, _spelled(kind))


def _spelled(kind: str) -> Callable[[str], str]:
    def spell(name: str) -> str:
        return f"${{{kind}:{name}}}"

    return spell


class References:
    """What the references of a configuration stand for."""

    def __init__(
        self,
        names: Mapping[str, Mapping[str, Any]],
        find: Callable[[str], Any] = lambda name: None,
    ) -> None:
        """Stores its arguments.

        Args:
          names: kind (`graph` or `run`) -> name -> object.
          find: looks for a name of kind `graph` that is not among them; None where there is none.
        """
        self._names, self._find = names, find

    def also(self, kind: str, names: Mapping[str, Any]) -> References:
        """Returns these references and those of another kind."""
        return References({**self._names, kind: names}, self._find)

    def problems(self, key: str, node: Any) -> list[Problem]:
        """Returns a problem for each reference to nothing, or within a text, below `node`.

        Args:
          key: where `node` stands.
          node: a nested value.
        """
        return [
            Problem(
                f"{where} is ${{{kind}:{name}}}",
                f"there is no such name in the {kind}",
                choices=nearest(name, self._names.get(kind, {}), 5),
            )
            for where, kind, name in references(key, node)
            if self._look_up(kind, name) is None
        ] + [
            Problem(
                f"{where} is {text}",
                "a reference stands for an object, which cannot be a part of a text",
                "let the reference be the whole value",
            )
            for where, text in _texts(key, node)
            if _REFERENCE.search(text) and not _REFERENCE.fullmatch(text)
        ]

    def resolve(self, value: Any) -> Any:
        """Returns the nested value with every reference replaced by what it stands for."""
        if isinstance(value, Mapping):
            return {name: self.resolve(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.resolve(item) for item in value)
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return self._look_up(found[1], found[2]) if found else value

    def _look_up(self, kind: str, name: str) -> Any:
        known = self._names.get(kind, {})
        if name in known:
            return known[name]
        return self._find(name) if kind == "graph" else None


def has_reference(node: Any) -> bool:
    """Says whether a nested value holds a reference."""
    return any(references("", node))


def references(key: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """Yields (key, kind, name) of every reference in a nested value."""
    for where, text in _texts(key, value):
        found = _REFERENCE.fullmatch(text)
        if found:
            yield where, found[1], found[2]


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields (key, text) of every text in a nested value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(f"{key}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(f"{key}.{index}", item)
    elif isinstance(value, str):
        yield key, value
