"""Parts that several programs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

COUNT = 48


def points(seed: int, size: int = 4) -> Any:
    """Returns features, float32 [COUNT, size]."""
    return np.random.default_rng(seed).normal(size=(COUNT, size)).astype("float32")


def tokens(seed: int, length: int = 8, words: int = 20) -> Any:
    """Returns sequences of words, int32 [COUNT, length]; 0 is left for padding."""
    return np.random.default_rng(seed).integers(1, words, (COUNT, length)).astype("int32")


def dense(*sizes: int, name: str, dropout: float = 0.0) -> keras.Sequential:
    """A small network; the first size is that of the input."""
    hidden = [layers.Dense(size, "tanh") for size in sizes[1:-1]]
    dropped = [layers.Dropout(dropout, seed=4)] if dropout else []
    return keras.Sequential(
        [keras.Input((sizes[0],)), *hidden, *dropped, layers.Dense(sizes[-1])], name=name
    )


def update(optimizer: Any, tape: Any, loss: Any, weights: Sequence[Any]) -> None:
    """Takes one step of an optimizer."""
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))


class Logged(keras.Model):
    """Tracks the means of what its steps return; `names` are theirs."""

    names: tuple[str, ...] = ()

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.trackers = [keras.metrics.Mean(name=name) for name in self.names]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    def tracked(self, losses: Sequence[Any]) -> Mapping[str, Any]:
        for tracker, loss in zip(self.trackers, losses, strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}
