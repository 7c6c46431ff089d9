"""The private API of OmegaConf that the rooms use: its YAML loader, with bounds.

YAML repeats a value by an alias without copying it, but OmegaConf copies it: a few lines of aliases
of aliases stand for more values than fit into memory. No public function takes another loader.
`tests/unit/internals/test_omegaconf_internals.py` fails when OmegaConf changes any of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from omegaconf import _utils

# A configuration has a few hundred values and levels that can be counted on two hands.
MAX_VALUES, MAX_DEPTH = 100_000, 50

_unbounded = _utils.get_yaml_loader


@cache
def bounded_loader() -> Any:
    """Returns OmegaConf's YAML loader, which refuses too many values, levels, and cycles."""

    class BoundedLoader(_unbounded()):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._level = 0
            # Node -> how many values and levels it stands for.
            self._extents: dict[int, tuple[int, int]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event, self._level = self.peek_event(), self._level + 1
            if self._level > MAX_DEPTH:
                raise _refused(event, f"it is nested more than {MAX_DEPTH} levels deep")
            node = super().compose_node(parent, index)
            self._level -= 1
            if id(node) not in self._extents:
                if isinstance(event, yaml.AliasEvent):
                    raise _refused(event, f"the value of &{event.anchor} contains itself")
                self._extents[id(node)] = self._extent(node)
            values, levels = self._extents[id(node)]
            if values > MAX_VALUES:
                raise _refused(event, f"it stands for more than {MAX_VALUES:,} values")
            if self._level + levels > MAX_DEPTH:
                raise _refused(event, f"it is nested more than {MAX_DEPTH} levels deep")
            return node

        def _extent(self, node: yaml.Node) -> tuple[int, int]:
            if isinstance(node, yaml.ScalarNode):
                return 1, 0
            children = [self._extents[id(child)] for child in _children(node)]
            levels = max((levels for _, levels in children), default=0)
            return 1 + sum(values for values, _ in children), 1 + levels

    return BoundedLoader


def bound_yaml() -> None:
    """Makes OmegaConf, and Hydra through it, read YAML by `bounded_loader` in this process."""
    _utils.get_yaml_loader = bounded_loader


def _children(node: Any) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value)


def _refused(event: Any, problem: str) -> yaml.composer.ComposerError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)
