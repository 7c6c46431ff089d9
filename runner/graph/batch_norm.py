"""Batch-norm statistics of frozen scaffolds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from runner.config.schema import ScaffoldConfig
from runner.internals.keras import layers_of
from runner.restoration.model_variables import keras_variables


def frozen_norms(model: keras.Model, policies: Mapping[str, ScaffoldConfig]) -> dict[Any, bool]:
    """Returns the batch-norm layers of frozen scaffolds, and whether their statistics stay.

    `policies` maps the model's variables to the scaffolds that own them.
    """
    weights = keras_variables(model)
    owners = {id(weight): policies[name] for name, weight in weights.items() if name in policies}
    norms = {}
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            scaffolds = [owners.get(id(weight)) for weight in layer.weights]
            if scaffolds and all(scaffold and not scaffold.trainable for scaffold in scaffolds):
                norms[layer] = not any(s.update_statistics for s in scaffolds if s)
    return norms


def statistics_notes(norms: Mapping[Any, bool]) -> Iterator[str]:
    """Yields lines on what happens to the statistics of `frozen_norms`."""
    for stays, what in ((True, "stay as they are"), (False, "follow the training data")):
        if count := [*norms.values()].count(stays):
            layers = f"{count} batch-norm layer{'s' * (count > 1)}"
            yield f"frozen: the statistics of {layers} {what}"
