"""Checks the `_target_` entries of all trials before the first one starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from runner.config import MODEL_SWITCHES, RunConfig
from runner.errors import ConfigError, Problem
from runner.quick_import import without_collections
from runner.sweeps.points import ComposedPoint, Point, placed
from runner.targets import check_signature
from runner.tensorflow_import import import_tensorflow


def check_targets(composed: Sequence[ComposedPoint]) -> None:
    """Checks that the targets of all trials are there and take what arguments they are given.

    Imports them, and with them TensorFlow. What only calling them can tell is not found.

    Raises:
      ConfigError: with every problem of every trial.
    """
    first = "tensorflow" not in sys.modules
    import_tensorflow()
    with without_collections() if first else nullcontext():
        problems = _all_problems(composed)
    if problems:
        raise ConfigError(
            *(placed(problem, where, len(composed)) for problem, where in problems.items())
        )


def _all_problems(composed: Sequence[ComposedPoint]) -> dict[Problem, list[Point]]:
    known: dict[str, tuple[Problem, ...]] = {}
    problems: dict[Problem, list[Point]] = {}
    for each in composed:
        for key, node in _nodes(each.config):
            shape = json.dumps([key, _shape(node)])
            if shape not in known:
                known[shape] = _problems(key, node)
            for problem in known[shape]:
                problems.setdefault(problem, []).append(each.point)
    return problems


def _nodes(config: RunConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "data", config.data
    yield "model", {key: each for key, each in config.model.items() if key not in MODEL_SWITCHES}
    yield "loss", config.loss
    yield "optimizer", config.optimizer
    for group, nodes in (("metrics", config.metrics), ("hooks", config.hooks)):
        yield from ((f"{group}.{name}", node) for name, node in nodes.items())


def _shape(node: Any) -> Any:
    """Returns the node with no more of its values than its check looks at."""
    if isinstance(node, Mapping):
        return {
            key: value if str(key).startswith("_") and key != "_args_" else _shape(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_shape(each) for each in node]
    # Whole numbers fit wherever one of them does.
    whole = not isinstance(node, float) or node.is_integer()
    return 0 if node is not None and not isinstance(node, str) and whole else node


def _problems(key: str, node: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        check_signature(key, node)
    except ConfigError as error:
        return tuple(replace(each, choices=tuple(each.choices)) for each in error.problems)
    return ()
