"""The private Keras API that the rooms use, each part with its purpose and its reason.

`tests/unit/internals/test_keras_internals.py` fails when Keras changes any of it.
"""

from __future__ import annotations

from typing import Any

from keras.src.saving import saving_lib


class _Groups(saving_lib.H5IOStore):
    """Records the groups of a weights file instead of writing them."""

    def __init__(self) -> None:
        self.groups: dict[str, tuple[str, dict[str, Any]]] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> dict[str, Any]:
        return self.groups.setdefault(path, ((metadata or {}).get("name", ""), {}))[1]


def saved_groups(model: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns what Keras would write to a model's weights file, without its optimizer's state.

    No public API returns the places of variables in that file; `save_weights` writes all values.

    Returns:
      Group, e.g. `layers/conv2d_1` -> the layer's name, and `0`, `1`, ... -> its variables.
    """
    store = _Groups()
    optimizer = getattr(model, "optimizer", None)
    saving_lib._save_state(
        model,
        weights_store=store,
        assets_store=None,
        inner_path="",
        visited_saveables={id(optimizer)} if optimizer is not None else set(),
    )
    return store.groups


def layers_of(model: Any) -> list[Any]:
    """Returns a Keras layer and all nested layers; `Model.layers` has only its direct children."""
    return list(model._flatten_layers())


def hand_over_losses(model: Any, scope: Any) -> None:
    """Makes what `add_loss` has added known within a `keras.StatelessScope`.

    Such a scope knows the losses of calls within it alone, and nothing public adds others.
    """
    for layer in layers_of(model):
        layer._loss_ids.update(map(id, layer._losses))
        scope.losses.extend(layer._losses)


def spares_weights(optimizer: Any) -> bool:
    """Whether `Optimizer.exclude_from_weight_decay` was called, which `get_config` leaves out."""
    return hasattr(optimizer, "_exclude_from_weight_decay")
