"""Training on several devices equals training on one; logical CPU devices stand for GPUs.

On a machine with GPUs, `make gpu-check` runs the same tests on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import tensorflow as tf

from runner.config.schema import (
    ClipConfig,
    DevicesConfig,
    RunConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import ConfigError
from runner.graph.build import build_graph
from tests.tiny.configs import tiny
from tests.tiny.graphs import opened, training_of

MOMENTUM = {
    "_target_": "tensorflow.compat.v1.train.MomentumOptimizer",
    "learning_rate": 0.05,
    "momentum": 0.9,
}
STEPS = 4
KIND = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
FIRST, SECOND = f"/device:{KIND}:0", f"/device:{KIND}:1"


def config(
    model: str, kind: str = "", dtype: str = "float64", policy: str = "float32", **changes: Any
) -> RunConfig:
    fields: dict[str, Any] = {
        "data": {"_target_": "tests.tiny.parallel.Examples", "kind": kind, "dtype": dtype},
        "model": {"_target_": f"tests.tiny.parallel.{model}", "dtype_policy": policy},
        "loss": None,
        "metrics": {},
        "optimizer": MOMENTUM,
        "seed": 3,
    }
    return tiny(**{**fields, **changes})


def on(config: RunConfig, count: int, **options: Any) -> RunConfig:
    """Returns a configuration that trains on a number of devices."""
    return replace(config, devices=DevicesConfig(count=count, **options))


@dataclass
class Trained:
    """The losses and metrics of some steps, and the variables after them."""

    steps: list[dict[str, float]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)


def train(config: RunConfig, steps: int = STEPS) -> Trained:
    result = Trained()
    with opened(config, cpus=4) as run:
        training = training_of(run.built)
        for _ in range(steps):
            values, _ = run.run((dict(training.values), training.train_op))
            result.steps.append({name: float(value) for name, value in values.items()})
        result.variables = run.run(dict(run.built.variables))
    return result


def require_equal(several: Trained, one: Trained, tolerance: float) -> None:
    assert several.variables.keys() == one.variables.keys()
    for name, expected in one.variables.items():
        assert several.variables[name] == pytest.approx(expected, rel=tolerance, abs=tolerance), (
            name
        )
    for taken, expected_values in zip(several.steps, one.steps, strict=True):
        assert taken == pytest.approx(expected_values, rel=max(tolerance, 1e-6))


CLASSES: dict[str, Any] = {
    "loss": {"_target_": "keras.losses.SparseCategoricalCrossentropy", "from_logits": True},
    "metrics": {"accuracy": "accuracy", "share": {"_target_": "tests.tiny.parallel.Share"}},
    "dtype": "float32",
}
ADAM = {"_target_": "keras.optimizers.AdamW", "learning_rate": 0.01, "use_ema": True}
HEAD = {"head": ScaffoldConfig(VariablesConfig(["hidden/*"]), trainable=False)}
DOUBLE = 1e-12
ROWS = {
    "regularizers, add_loss, metrics of layers": (config("dense"), DOUBLE),
    "convolutions, synchronised batch norm, masks": (config("norms"), DOUBLE),
    "recurrent, sparse gradients": (config("recurrent"), DOUBLE),
    "several inputs and outputs": (config("nested", "nested"), DOUBLE),
    "sample weights": (config("dense", "weighted"), DOUBLE),
    "accumulated, clipped, averaged": (
        config(
            "dense",
            train=TrainConfig(accumulate=2, clip=ClipConfig(global_norm=0.5), ema_decay=0.9),
        ),
        DOUBLE,
    ),
    "accumulated batch norm": (config("norms", train=TrainConfig(accumulate=2)), DOUBLE),
    "Keras's optimizer": (config("dense", optimizer=ADAM), DOUBLE),
    "frozen, classes, metrics": (
        config("single", "classes", **{**CLASSES, "scaffolds": HEAD, "class_weight": {1: 3.0}}),
        1e-5,
    ),
    "bfloat16": (config("single", "classes", policy="mixed_bfloat16", **CLASSES), 2e-2),
    "float16": (config("single", "classes", policy="mixed_float16", **CLASSES), 5e-3),
}


@pytest.mark.parametrize("row", ROWS)
def test_several_devices_do_what_one_does_with_the_whole_batch(row: str) -> None:
    config, tolerance = ROWS[row]
    several = train(on(config, 2, sync_batch_norm=True))
    require_equal(several, train(config), tolerance)


def _inner_operations(graph: tf.Graph) -> list[tuple[str, str]]:
    """Name and device of all nodes of the functions of a graph."""
    definition = graph.as_graph_def()
    return [
        (node.name, node.device)
        for function in definition.library.function
        for node in function.node_def
    ]


def test_each_device_computes_its_part_and_its_gradients() -> None:
    built = build_graph(on(config("recurrent"), 2), "validation", train=True)
    devices: dict[str, list[str]] = {}
    for name, device in _inner_operations(built.graph):
        devices.setdefault(device, []).append(name)
    second = [name for name in devices[SECOND] if "gradients" in name]
    first = [name for name in devices[FIRST] if "gradients" in name]
    for kind in ("MatMul", "while"):
        assert any(kind in name for name in second), "or the second device would not differentiate"
    # What is on the first alone: the join of the outputs, and the sums over the devices.
    assert 0.7 < len(second) / len(first) <= 1.0


def test_the_notes_of_a_run_show_what_the_devices_do() -> None:
    assert build_graph(config("norms"), "validation", train=True).notes == ()
    for sync, shown in ((True, "statistics of the whole batch"), (False, "the first one's")):
        several = on(config("norms"), 2, sync_batch_norm=sync)
        notes = "\n".join(build_graph(several, "validation", train=True).notes)
        assert shown in notes
        assert re.search(
            r"copies [\d,]+ bytes of variables .* and [\d,]+ bytes of gradients", notes
        )


def test_dropout_differs_between_devices_and_repeats_between_runs() -> None:
    zero = {**MOMENTUM, "learning_rate": 0.0}
    several = on(config("random", dtype="float32", loss="mse", optimizer=zero), 2)
    losses = [train(several).steps for _ in range(2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("counting", "the tf.Variable"),
        ("unseeded", "a keras.Variable that the model does not list"),
        ("pooled", "an output of type .* shape"),
    ],
)
def test_what_devices_cannot_share_is_refused(model: str, shown: str) -> None:
    several = on(config(model, dtype="float32", loss="mse"), 2)
    with pytest.raises(ConfigError, match=shown):
        build_graph(several, "validation", train=True)
