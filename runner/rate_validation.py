"""Checks what a configuration says of the learning rate, for which no graph is needed."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from runner.errors import Problem

KEY = "optimizer.learning_rate"


def rate_problems(optimizer: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem where the optimizer's `learning_rate` is neither a number nor a schedule.

    None where it has no `learning_rate`, or null. A schedule's own arguments are not checked.

    Args:
      optimizer: the optimizer's configuration.
    """
    node = optimizer.get("learning_rate")
    if node in (None, "???"):  # One that is not set at all is a problem of its own.
        return []
    is_number = isinstance(node, Real) and not isinstance(node, bool)
    is_schedule = isinstance(node, Mapping) and "_target_" in node
    return [] if is_number or is_schedule else [no_rate(node)]


def no_rate(node: Any) -> Problem:
    """The problem of a learning rate that is none.

    Args:
      node: what the configuration says.
    """
    return Problem(
        f"{KEY} is {node!r}",
        "it is neither a number nor a schedule",
        "for example 1e-3, or schedule@optimizer.learning_rate=cosine",
    )
