"""A model takes each value from the layer that it belongs to, or the plan is refused.

A model is saved, and built again: its layers are made in another order, so that Keras counts them
otherwise, branches with names come in another order, and other layers were made before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import runner
from runner.errors import PlanError
from runner.internals.keras import slots_of
from tests.conformance.random_models import WIDTH, build, changed, fill, random_node, reordered

# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
]


def _save_objects(model: keras.Model, path: Path) -> str:
    return str(tf.train.Checkpoint(model=model).write(str(path)))


SAVES: dict[str, Callable[[keras.Model, Path], Any]] = {
    ".keras": lambda model, path: model.save(path),
    ".weights.h5": lambda model, path: model.save_weights(path),
    ".h5": lambda model, path: model.save(path),
    ".objects": _save_objects,
}
OPTIMIZERS: tuple[Callable[[], Any], ...] = (
    lambda: keras.optimizers.Adam(0.1),
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.CosineDecay(0.1, 9), centered=True),
    lambda: keras.optimizers.Adam(0.1, use_ema=True),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.1)),
)


def check(seed: int, folder: Path) -> str:
    """Saves a random model and starts another from it; returns what became of it."""
    rng = random.Random(seed)
    keras.utils.clear_session()
    node = random_node(rng)
    frozen = frozenset(layer.key for layer in node.layers() if rng.random() < 0.15)
    ending = rng.choice([*SAVES])
    make_optimizer = rng.choice(OPTIMIZERS)
    with_slots = ending in (".keras", ".weights.h5") and rng.random() < 0.7
    source, variables = build(node, rng, frozen)
    values = fill(variables, seed)
    if with_slots:
        optimizer = make_optimizer()
        source.compile(optimizer, "mse")
        optimizer.build(source.trainable_variables)
        values |= fill(_slots(optimizer, variables), seed + 1)
    path = folder / f"{seed}{ending}"
    SAVES[ending](source, path)
    if rng.random() < 0.5:
        keras.utils.clear_session()
    again = rng.choice([node, reordered(node, rng)])
    is_other = rng.random() < 0.4
    if is_other:
        again = changed(again, rng)
    model, ours = build(again, rng, frozen if rng.random() < 0.7 else frozenset())
    part = keras.Sequential([keras.Input((3, WIDTH)), model]) if rng.random() < 0.2 else model
    scaffold: dict[str, Any] = {"variables": {"include": ["*"]}, "checkpoint": str(path)}
    if is_other:
        scaffold["missing"] = "init"
    if with_slots:
        optimizer = make_optimizer()
        optimizer.build(model.trainable_variables)
        slots = _slots(optimizer, ours)
        ours = {**ours, **slots}
        scaffold["state"] = ["weights", "batch_norm", "optimizer_slots"]
        scaffold["state"] += ["moving_averages"] * any(name.endswith("/average") for name in slots)
    before = {key: variable.numpy() for key, variable in ours.items()}
    try:
        runner.warm_start(part, {"all": scaffold}, optimizer=optimizer if with_slots else None)
    except PlanError as error:
        for key, variable in ours.items():
            np.testing.assert_array_equal(variable.numpy(), before[key], err_msg=key)
        return f"{ending} refused: {error.problems[0]}"
    taken = 0
    for key, variable in ours.items():
        value = variable.numpy()
        if is_other and np.array_equal(value, before[key]):
            continue
        np.testing.assert_array_equal(value, values.get(key), err_msg=f"{seed} {key}")
        taken += 1
    return f"{ending} {'other ' * is_other}restored: {taken} of {len(ours)}"


def _slots(optimizer: Any, variables: dict[str, Any]) -> dict[str, Any]:
    keys = {id(variable): key for key, variable in variables.items()}
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return {f"{keys[id(slot.trained)]}/{slot.name}": slot.variable for slot in slots_of(inner)}


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_every_value_is_of_its_layer_or_the_plan_is_refused(first: int, tmp_path: Path) -> None:
    outcomes = Counter(check(seed, tmp_path).partition(":")[0] for seed in range(first, first + 20))
    restored = sum(count for name, count in outcomes.items() if name.endswith("restored"))
    assert restored >= 10, outcomes


@pytest.mark.soak
def test_every_value_of_many_models(tmp_path: Path) -> None:
    outcomes = Counter(check(seed, tmp_path).partition(":")[0] for seed in range(1000, 3000))
    assert sum(n for name, n in outcomes.items() if name.endswith("restored")) > 1000, outcomes
