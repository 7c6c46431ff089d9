"""A model takes each value from the layer that it belongs to, or the plan is refused.

A model is saved, and built again: its layers are made in another order, so that Keras counts them
otherwise, branches with names come in another order, and other layers were made before. Or a file
of PyTorch's names and layouts says one thing otherwise.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import runner
from runner.errors import CheckpointError, PlanError
from runner.internals.keras import slots_of
from tests.conformance.random_models import (
    WIDTH,
    as_torch,
    build,
    changed,
    fill,
    named,
    random_node,
    reordered,
)
from tests.support.torch_files import save_arrays

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
    lambda: keras.optimizers.Adafactor(0.1),
    lambda: keras.optimizers.Ftrl(0.1),
    lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    lambda: keras.optimizers.Lion(0.1, use_ema=True, gradient_accumulation_steps=2),
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


# Changes a tensor in a file of PyTorch's names: returns the tensors, and how near the values are,
# or that the file may be refused.
Change = Callable[[dict[str, Any], str], tuple[dict[str, Any], float]]
REFUSED = -1.0


def _other(tensors: dict[str, Any], name: str, **others: Any) -> dict[str, Any]:
    """Replaces a tensor by others, whose names end differently."""
    rest = {key: value for key, value in tensors.items() if key != name}
    return {**rest, **{f"{name}{end}": value for end, value in others.items()}}


def _quantized(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    codes = np.round(tensors[name] * 60).astype(np.int8)
    return {**tensors, name: codes, f"{name}_scale": np.full(1, 1 / 60, np.float32)}


def _cut(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    value = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    return {**tensors, name: value}


def _normed(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    value = tensors[name]
    norm = np.sqrt(np.square(value).sum(axis=(*range(1, value.ndim),), keepdims=True))
    return _other(tensors, name, _g=norm, _v=value * 3)


CHANGES: dict[str, Change] = {
    "nothing": lambda tensors, name: (tensors, 0.0),
    "halves": lambda tensors, name: ({k: v.astype(np.float16) for k, v in tensors.items()}, 1e-2),
    "bfloat16": lambda tensors, name: (
        {k: v.astype(ml_dtypes.bfloat16) for k, v in tensors.items()},
        2e-2,
    ),
    "doubles": lambda tensors, name: ({k: v.astype(np.float64) for k, v in tensors.items()}, 0.0),
    "a scale beside": lambda tensors, name: ({**tensors, f"{name}_scale": np.ones(1, "f4")}, 0.0),
    "codes": lambda tensors, name: (_quantized(tensors, name), REFUSED),
    "float8": lambda tensors, name: (_cut(tensors, name), REFUSED),
    "integers": lambda tensors, name: (
        {**tensors, name: (tensors[name] * 9).astype(np.int64)},
        REFUSED,
    ),
    "GPTQ": lambda tensors, name: (
        _other(tensors, name, _packed=np.ones((2, 2), np.int32)),
        REFUSED,
    ),
    "pruned": lambda tensors, name: (
        _other(tensors, name, _orig=tensors[name] * 2, _mask=np.ones_like(tensors[name])),
        REFUSED,
    ),
    "weight norm": lambda tensors, name: (_normed(tensors, name), 1e-5),
    "missing": lambda tensors, name: (_other(tensors, name), REFUSED),
    "another name": lambda tensors, name: (_other(tensors, name, _1=tensors[name]), REFUSED),
    "another shape": lambda tensors, name: ({**tensors, name: tensors[name][None]}, REFUSED),
}
FILES: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    ".npz": lambda path, tensors: np.savez(path, **tensors),
    ".safetensors": lambda path, tensors: safetensors.numpy.save_file(tensors, path),
    ".pt": lambda path, tensors: save_arrays(path, tensors),
}


def check_torch(seed: int, folder: Path) -> str:
    """Starts a random model from a file of PyTorch's names of which one thing is changed."""
    rng = random.Random(seed)
    keras.utils.clear_session()
    node = named(random_node(rng))
    model, variables = build(node, rng)
    values = fill(variables, seed)
    tensors = as_torch(node, variables, values)
    weights = [name for name in tensors if name.endswith(".weight") and tensors[name].ndim > 1]
    change = rng.choice([*CHANGES] if weights else ["nothing", "doubles"])
    tensors, near = CHANGES[change](tensors, rng.choice(weights) if weights else "")
    prefix = rng.choice(["", "model."])
    tensors = {f"{prefix}{name}": np.ascontiguousarray(value) for name, value in tensors.items()}
    plain = all(value.dtype.name in ("float32", "int64") for value in tensors.values())
    numpy = all(value.dtype.kind in "fiu" for value in tensors.values())
    ending = rng.choice([".safetensors", *([".npz"] * numpy), *([".pt"] * plain)])
    path = folder / f"{seed}{ending}"
    FILES[ending](path, tensors)
    by_rules = {"rules": {"{layer}/": f"{prefix}{{layer}}. | torch"}}
    by_keys = {"convert": {"*": "torch"}, "rename": {"re:(.*)": rf"{prefix}\1"} if prefix else {}}
    scaffold: dict[str, Any] = {
        "variables": {"include": ["*"], "exclude": ["*seed_generator_state"]},
        "checkpoint": str(path),
        "cast": rng.random() < 0.5,
        **rng.choice([by_rules, by_keys]),
    }
    if "rnn" not in {layer.kind for layer in node.layers()}:
        del scaffold["variables"]["exclude"]
    fill(variables, seed + 1)
    before = {key: variable.numpy() for key, variable in variables.items()}
    try:
        runner.warm_start(model, {"all": scaffold})
    except (PlanError, CheckpointError):
        if near != REFUSED:
            raise
        for key, variable in variables.items():
            np.testing.assert_array_equal(variable.numpy(), before[key], err_msg=key)
        return f"{change} refused"
    for key, variable in variables.items():
        restored, where = variable.numpy(), f"{seed} {key} {change}"
        np.testing.assert_allclose(restored, values[key], rtol=max(near, 0), err_msg=where)
    return f"{change} restored"


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_a_changed_file_gives_the_right_values_or_none(first: int, tmp_path: Path) -> None:
    outcomes = Counter(check_torch(seed, tmp_path) for seed in range(first, first + 20))
    assert any(name.endswith("restored") for name in outcomes)
    assert any(name.endswith("refused") for name in outcomes)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_every_value_is_of_its_layer_or_the_plan_is_refused(first: int, tmp_path: Path) -> None:
    outcomes = Counter(check(seed, tmp_path).partition(":")[0] for seed in range(first, first + 20))
    restored = sum(count for name, count in outcomes.items() if name.endswith("restored"))
    assert restored >= 10, outcomes


@pytest.mark.soak
def test_many_changed_files(tmp_path: Path) -> None:
    outcomes = Counter(check_torch(seed, tmp_path) for seed in range(1000, 3000))
    assert {name.rpartition(" ")[0] for name in outcomes} == {*CHANGES}


@pytest.mark.soak
def test_every_value_of_many_models(tmp_path: Path) -> None:
    outcomes = Counter(check(seed, tmp_path).partition(":")[0] for seed in range(1000, 3000))
    assert sum(n for name, n in outcomes.items() if name.endswith("restored")) > 1000, outcomes
