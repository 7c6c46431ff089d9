"""Search spaces as functions, and a constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def conditional(trial: Any, most: int = 4) -> dict[str, Any] | None:
    """Draws a number of units, and for SGD a learning rate that follows from it."""
    units = trial.suggest_int("+model.units", 1, most)
    if trial.suggest_categorical("optimizer", ["adam", "sgd"]) == "sgd":
        return {"optimizer.learning_rate": 0.1 / units}
    return None


def worse_each_time(trial: Any) -> dict[str, Any]:
    """Draws nothing: after the first trial hardly anything is learned."""
    return {"optimizer.learning_rate": 1e-9 if trial.number else 0.01}


def misspelt(trial: Any) -> None:
    """Draws a value for a key that does not exist."""
    trial.suggest_float("optimizer.learning_rat", 0.1, 1.0)


def misspelt_later(trial: Any) -> None:
    """Draws a value for a key that does not exist, in a study that is not in memory."""
    stored = type(trial.storage).__name__ != "InMemoryStorage"
    trial.suggest_float("optimizer.learning_rat" if stored else "optimizer.learning_rate", 0.1, 1.0)


def raising(trial: Any) -> None:
    """Fails at once."""
    raise ZeroDivisionError("by zero")


def returning(trial: Any) -> float:
    """Returns no overrides."""
    return 0.5


def accurate(metrics: Mapping[str, float], least: float) -> float:
    """At most 0 where the accuracy is high enough."""
    return least - metrics["accuracy"]


def low(metrics: Mapping[str, float], least: float) -> float:
    """At most 0 where the loss is low enough."""
    return metrics["loss"] - least


def forgetful(metrics: Mapping[str, float]) -> None:
    """Returns nothing."""


def divided(metrics: Mapping[str, float]) -> float:
    """Fails where the loss is one half."""
    return 1.0 / (metrics["loss"] - 0.5)


def undivided(metrics: Mapping[str, float]) -> float:
    """Fails where the loss is anything but one half."""
    return 1.0 / (metrics["loss"] == 0.5)
