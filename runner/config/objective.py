"""The metric that selects the best checkpoint, among those that an evaluation produces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.errors import ConfigError, Problem, ranked


def metric_names(config: Mapping[str, Any]) -> list[str] | None:
    """Returns the names of the configured metrics, the loss among them.

    A metric of one output is `OUTPUT_METRIC`. Returns None without metrics in the configuration,
    because a compiled model may have some: the built graph tells.
    """
    names: list[str] = []
    for group in ("metrics", "weighted_metrics"):
        for name, node in config[group].items():
            if isinstance(node, Mapping) and "_target_" not in node:
                names += (f"{name}_{inner}" for inner in node)
            else:
                names.append(name)
    if isinstance(config["loss"], Mapping) and "_target_" not in config["loss"]:
        names += (f"{output}_loss" for output in config["loss"])
    return ["loss", *names] if names else None


def require_objective(objective: str, names: Sequence[str]) -> None:
    """Raises a ConfigError if `train.objective` is not the name of one of the metrics."""
    problems = list(objective_problem(objective, names))
    if problems:
        raise ConfigError(*problems)


def objective_problem(objective: str, names: Sequence[str]) -> Iterator[Problem]:
    """Yields the problem of an objective that is not the name of one of the metrics."""
    valid = [f"validation/{name}" for name in names]
    if objective not in valid:
        yield Problem(
            f"train.objective is {objective!r}",
            "no evaluation produces a metric of that name",
            "set train.objective to one of the metrics, or add it to `metrics`",
            ranked(objective, valid),
        )
