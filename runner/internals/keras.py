"""The private Keras API that the rooms use, each part with its purpose and its reason.

`tests/unit/internals/test_keras_internals.py` fails when Keras changes any of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# The class of the variables that layers and optimizers make. In Keras 3.6, `keras.Variable` is a
# subclass of it, of which they have no instance; in newer versions it is the same.
from keras.src.backend import Variable as Variable
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import get_data_adapter
from keras.src.trainers.epoch_iterator import EpochIterator

# Names layers and models after their classes; no public module offers it.
from keras.src.utils.naming import to_snake_case as to_snake_case
from tensorflow.data.experimental import assert_cardinality

from runner.errors import RunnerError

# Keras raises errors of its calls again as new ones, built from their messages: a signal would no
# longer be an `InterruptedRunError`. It leaves those alone that have this attribute.
RunnerError._keras_call_info_injected = True  # type: ignore[attr-defined]

# What `keras.utils.set_random_seed` was called with, and what draws where no seed is named.
_SEEDS = ("global_random_seed", "global_seed_generator")


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
    for kind in ("Operation", "Layer", "Functional", "Sequential"):
        # Keras looks for these under one name and keeps them under another, so that it builds them
        # for every layer: 0.08 s for ResNet-50, against 0.02.
        with suppress(ValueError):  # Keras 3.10 knows no "Operation".
            skipset = saving_lib.get_attr_skipset(kind)
            global_state.set_global_attribute(f"saving_attr_skiplist_{kind}", skipset)
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


def clear_and_seed(seed: int, *, seeds_stay: bool) -> None:
    """Clears Keras's state, so that names of layers count from the start, and seeds the process.

    Nothing public returns the seed and the generator of random numbers without a seed, which
    `keras.utils.clear_session` drops.

    Args:
      seed: the seed.
      seeds_stay: whether a process that is seeded already keeps its seed, and how far it is in it.
    """
    seeds = {name: global_state.get_global_attribute(name) for name in _SEEDS}
    keras.utils.clear_session()
    if seeds_stay and seeds[_SEEDS[0]] is not None:
        for name, value in seeds.items():
            global_state.set_global_attribute(name, value)
    else:
        keras.utils.set_random_seed(seed)


@contextmanager
def restored_names() -> Iterator[None]:
    """Puts back the names, policy and seeds that `keras.utils.clear_session` drops in the block.

    Nothing public returns them. Clearing replaces the objects that hold them.
    """
    state = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = state


def layers_of(model: Any) -> list[Any]:
    """Returns a Keras layer and all nested layers; `Model.layers` has only its direct children."""
    return list(model._flatten_layers())


def finalize(model: Any) -> None:
    """Lets `Normalization` layers compute with their variables as they are now.

    They compute with tensors that Keras derives from the variables when it builds or loads them.
    Within a function that is traced, the tensors are of its graph: call it again afterwards.
    """
    for layer in layers_of(model) if isinstance(model, keras.Layer) else ():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def is_loader(data: Any) -> bool:
    """Returns whether data are batches of PyTorch or Grain, such as a `DataLoader`."""
    packages = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    return not packages.isdisjoint(("torch", "grain")) and not hasattr(data, "__array__")


def loaded_batches(loader: Any) -> tf.data.Dataset:
    """Returns the batches of a loader as `fit` reads them, which no public function does."""
    adapter = get_data_adapter(loader)
    batches, count = adapter.get_tf_dataset(), adapter.num_batches
    return batches if count is None else batches.apply(assert_cardinality(count))


def begins_ahead() -> bool:
    """Whether `fit` makes an iterator of its data when an epoch ends, and one when it begins.

    Keras 3.6 makes one. `tests/unit/test_fit_parity.py` compares shuffled data with `fit`'s.
    """
    return hasattr(EpochIterator, "_enumerate_iterator")


def activity_losses_are_means() -> bool:
    """Whether losses of `activity_regularizer` are divided by the batch, as newer Kerases do."""
    layer = keras.layers.Identity(activity_regularizer=keras.regularizers.L1(1.0), dtype="float32")
    layer(np.ones((2, 1), np.float32))
    return float(layer.losses[0]) == 1.0


def automatic_names(model: Any) -> frozenset[str]:
    """Returns the names of layers in a model that Keras gave, or could have given: `dense_3`.

    Keras makes them of the layer's class and a number; nothing public says that it has.
    """
    names = {layer.name: to_snake_case(type(layer).__name__) for layer in layers_of(model)}
    # `Bidirectional` names its two layers after the one that it is given.
    counted = r"(?:forward_|backward_)?{}(?:_\d+)?"
    return frozenset(
        name for name, stem in names.items() if re.fullmatch(counted.format(stem), name)
    )


def trainable_by_layer(model: Any) -> list[list[Any]]:
    """Returns the variables that train unless frozen, in the order of the model's variables.

    The variables of a layer that Keras defines are together with the ones of the layers within it.
    Any other layer may hold its layers in any order, so its variables are by themselves. A frozen
    layer has none in `trainable_variables`, and nothing public says which it would have.
    """
    trained = {id(v) for layer in layers_of(model) for v in layer._trainable_variables}
    blocks: dict[int, list[Any]] = {}
    owners: dict[int, int] = {}
    for layer in layers_of(model):
        is_keras = type(layer).__module__.startswith("keras.src.layers")
        for variable in layer.variables if is_keras else layer._trainable_variables:
            owners.setdefault(id(variable), id(layer))
    for variable in model.variables:
        if id(variable) in trained and id(variable) in owners:
            blocks.setdefault(owners[id(variable)], []).append(variable)
    return list(blocks.values())


def flattened_map(layer: Any) -> tuple[int, ...]:
    """Returns the shape (height, width, channels) that a flatten before a layer has; else empty.

    Layers without weights in between are passed. No public API leads from a layer's input to the
    layer that computes it.
    """
    try:
        tensor = layer.input
        while not isinstance(tensor._keras_history.operation, keras.layers.Flatten):
            before = tensor._keras_history.operation
            if before.weights or not isinstance(before.input, keras.KerasTensor):
                return ()
            tensor = before.input
        shape = tensor._keras_history.operation.input.shape[1:]
    except (AttributeError, ValueError):  # Not called with symbols, or in several places.
        return ()
    return tuple(shape) if len(shape) > 2 and None not in shape and max(shape[:-1]) > 1 else ()


def flatten_with_path(structure: Any) -> list[tuple[Any, Any]]:
    """Returns (path, leaf) of a structure, by `keras.tree.flatten_with_path` where there is one."""
    if hasattr(keras.tree, "flatten_with_path"):
        return list(keras.tree.flatten_with_path(structure))
    import optree  # Keras 3.6 takes structures apart by it, and has only the other half.

    paths = optree.tree_paths(structure, none_is_leaf=True, namespace="keras")
    return list(zip(paths, keras.tree.flatten(structure), strict=True))


def metrics_of(model: Any) -> list[Any]:
    """Returns the metrics of a Keras model, also those that `compile` made or was given.

    A model may override `metrics`, which then lacks the tracker of the loss that `compile` made.
    Before the first batch, the metrics of `compile` do not know the objects that it was given.
    """
    tracker, compiled = (
        getattr(model, name, None) for name in ("_loss_tracker", "_compile_metrics")
    )
    users = [getattr(compiled, f"_user_{kind}", None) for kind in ("metrics", "weighted_metrics")]
    others = [tracker, compiled, *keras.tree.flatten(users)]
    return [*model.metrics, *(item for item in others if isinstance(item, keras.Metric))]


def compiled_with(model: Any) -> dict[str, Any]:
    """Returns the arguments that `keras.Model.compile` was last called with; empty without a call.

    `get_compile_config` returns them serialised, which not all can be.
    """
    recorded = getattr(model, "_compile_config", None) if model.compiled else None
    return dict(recorded.config) if recorded is not None else {}


def compiled_parts(model: Any) -> tuple[bool, bool]:
    """Returns whether the compiled losses, and metrics, of a model have been used, if only traced.

    Nothing public tells.
    """
    parts = (getattr(model, name, None) for name in ("_compile_loss", "_compile_metrics"))
    losses, metrics = (part is not None and bool(part.built) for part in parts)
    return losses, metrics


# The method by which an optimizer decays weights, with one learning rate for all.
WEIGHT_DECAY = "_apply_weight_decay"


def trained_by(optimizer: Any) -> list[Any]:
    """Returns the variables that a Keras optimizer was built for, which nothing public lists."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def replaced_moments(moments: Callable[..., Any]) -> AbstractContextManager[None]:
    """Lets batch-norm layers use other statistics of a batch within the block.

    Keras's `synchronized=True` needs a `tf.distribute.Strategy`. `moments` takes Keras's own
    method, the layer, its inputs and mask, and returns mean and variance.
    """
    return _replaced(keras.layers.BatchNormalization, "_moments", moments)


def replaced_calls(call: Callable[..., Any]) -> AbstractContextManager[None]:
    """Lets `call` make the calls of layers within; it takes Keras's own, the layer, and arguments.

    Keras has no hooks for calls. An attribute `call` of a layer would be tracked by it.
    """
    return _replaced(keras.Layer, "__call__", call)


class ReachedLayerError(RunnerError):
    """Ends a call of a model at a layer, from within `replaced_calls`; `call` is the layer's."""

    def __init__(self, call: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.call = call


@contextmanager
def _replaced(kind: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = getattr(kind, name)
    setattr(kind, name, lambda layer, *args, **options: function(original, layer, *args, **options))
    try:
        yield
    finally:
        setattr(kind, name, original)


@dataclass(frozen=True)
class Slot:
    """A variable that a Keras optimizer keeps for a variable that it trains.

    Attributes:
      variable: the slot.
      name: e.g. `momentum`, or `average` for a moving average.
      trained: the variable that the optimizer trains, as it was given to `build`.
    """

    variable: Variable
    name: str
    trained: Any


def slots_of(optimizer: Any) -> Iterator[Slot]:
    """Yields the slots of a built Keras optimizer.

    An optimizer finds the slot of a variable by the variable's position, in an attribute that is a
    list. Nothing public tells slots apart: their paths join the names of optimizer, variable and
    slot with `_`, and Adafactor's lack the variable.
    """
    trained = optimizer._trainable_variables
    for attribute, slots in vars(optimizer).items():
        if attribute in ("_variables", "_trainable_variables"):
            continue
        if isinstance(slots, dict):  # Muon's in Keras 3.10 to 3.12, by paths of variables.
            slots = [slots.get(getattr(variable, "path", None)) for variable in trained]
        if isinstance(slots, list | tuple) and len(slots) == len(trained):
            for slot, variable in zip(slots, trained, strict=True):
                if isinstance(slot, Variable):
                    last = slot.path.rpartition("/")[2]
                    name = last.removeprefix(_slot_prefix(variable))
                    yield Slot(slot, attribute.strip("_") if name == last else name, variable)


def _slot_prefix(variable: Any) -> str:
    """Returns the beginning of the last part of a slot's path, as Keras makes it."""
    if isinstance(variable, tf.Variable):
        return f"{variable.name}_".replace("/", "_").replace(":", "_")
    return f"{variable.path}_".replace("/", "_")


@dataclass(frozen=True)
class RecordedCall:
    """The first call of a layer: its positional arguments, and its output."""

    arguments: tuple[Any, ...]
    output: Any


@contextmanager
def recorded_calls() -> Iterator[dict[int, RecordedCall]]:
    """Records the first call of every Keras layer within, by the `id` of the layer.

    A model of the outputs of all layers, the public way, needs a functional one.
    """
    calls: dict[int, RecordedCall] = {}

    def recording(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
        output = original(layer, *arguments, **keywords)
        calls.setdefault(id(layer), RecordedCall(arguments, output))
        return output

    with replaced_calls(recording):
        yield calls
