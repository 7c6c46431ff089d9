"""Training on several devices equals training on one; logical CPU devices stand for GPUs.

On a machine with two GPUs, `make gpu-check` runs the same tests on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import DeviceBatch
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
from runner.graph.devices import devices_of
from tests.tiny.configs import tiny
from tests.tiny.graphs import Opened, opened, training_of

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


def train(config: RunConfig, steps: int = STEPS, restore: str | None = None) -> Trained:
    result = Trained()
    with opened(config, restore=restore, cpus=4) as run:
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
    "fewer examples than devices": (config("dense", "rest of one"), DOUBLE),
    "batch norm of fewer": (config("norms", "rest of one"), DOUBLE),
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
    "a step of its own, differentiated twice": (
        config("critic", "features", dtype="float32", optimizer={}),
        1e-4,
    ),
    "bfloat16": (config("single", "classes", policy="mixed_bfloat16", **CLASSES), 2e-2),
    "float16": (config("single", "classes", policy="mixed_float16", **CLASSES), 5e-3),
}


# Long, and other rows have most of it.
AT_LENGTH = ("accumulated batch norm", "float16")


@pytest.mark.parametrize("row", [row for row in ROWS if row not in AT_LENGTH])
def test_several_devices_do_what_one_does_with_the_whole_batch(row: str) -> None:
    config, tolerance = ROWS[row]
    several = train(on(config, 2, sync_batch_norm=True))
    require_equal(several, train(config), tolerance)


@pytest.mark.soak
@pytest.mark.parametrize("row", [*AT_LENGTH, *(row for row in ROWS if ROWS[row][1] == DOUBLE)])
def test_after_many_steps_too(row: str) -> None:
    config, tolerance = ROWS[row]
    # At the limit of float16, rounding decides which steps the loss scale leaves out.
    steps = STEPS if row == "float16" else 50
    several = train(on(config, 2, sync_batch_norm=True), steps)
    require_equal(several, train(config, steps), tolerance)


def _inner_operations(graph: tf.Graph) -> list[tuple[str, str]]:
    """Name and device of what computes in the functions of a graph."""
    definition = graph.as_graph_def()
    return [
        (node.name, node.device)
        for function in definition.library.function
        for node in function.node_def
        if node.op not in ("Identity", "NoOp")
    ]


def devices_of_a_step(run: Opened) -> set[str]:
    """The devices that computed anything."""
    metadata = tf.compat.v1.RunMetadata()
    traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    run.session.run(training_of(run.built).train_op, options=traced, run_metadata=metadata)
    return {"/" + stats.device.rpartition("/")[2] for stats in metadata.step_stats.dev_stats}


@pytest.mark.parametrize(
    "config",
    [
        config("nested", "nested"),
        pytest.param(config("recurrent"), marks=pytest.mark.soak),
        config("critic", "features", dtype="float32", optimizer={}),
    ],
)
def test_each_device_differentiates_what_it_computed(config: RunConfig) -> None:
    built = build_graph(on(config, 2), "validation", train=True)
    placed = {
        (part[1], device)
        for name, device in _inner_operations(built.graph)
        if device and "_grad" in name and (part := re.search(r"device_(\d)", name))
    }
    # What has none, such as the body of a loop, is where its caller is.
    assert placed == {("0", FIRST), ("1", SECOND)}
    with opened(built, cpus=2) as run:
        assert {FIRST, SECOND} <= devices_of_a_step(run)


def test_a_run_resumes_on_any_number_of_devices(tmp_path: Path) -> None:
    several = on(config("dense", optimizer=ADAM), 2)
    whole = train(several)
    with opened(several, cpus=4) as run:
        run.train(2)
        prefix = run.save(tmp_path)
    again = train(several, 2, restore=prefix)
    assert again.steps == whole.steps[2:], "bit for bit"
    for name, value in whole.variables.items():
        assert np.array_equal(again.variables[name], value), name
    for count in (1, 3) if KIND == "CPU" else (1,):
        require_equal(
            train(on(several, count, sync_batch_norm=True), 2, restore=prefix), again, 1e-9
        )


def test_the_notes_of_a_run_show_what_the_devices_do() -> None:
    few = config("single", "classes", **CLASSES)
    for sync, shown in ((True, "statistics of the whole batch"), (False, "the first one's")):
        several = on(few, 2, sync_batch_norm=sync)
        notes = "\n".join(build_graph(several, "validation", train=True).notes)
        assert shown in notes
        assert re.search(r"copies [\d,]+ bytes of variables .* [\d,]+ bytes of gradients", notes)
    assert build_graph(few, "validation", train=True).notes == ()


def test_dropout_differs_between_devices_and_repeats_between_runs() -> None:
    fixed = config("random", "even", "float32", optimizer={**MOMENTUM, "learning_rate": 0.0})
    losses = [[values["loss"] for values in train(on(fixed, 2)).steps] for _ in range(2)]
    assert losses[0] == losses[1]
    assert min(losses[0]) > 0.2, "both halves of the batch would have one mask"
    assert len({*losses[0]}) > 1


def test_a_device_without_examples_adds_nothing_to_gradients() -> None:
    several = train(on(config("norms", "rest of one"), 2))
    assert all(np.isfinite(values).all() for values in several.variables.values())


def test_epochs_are_counted_beside_a_model_on_another_device_than_the_first() -> None:
    elsewhere = replace(config("dense", train=TrainConfig(epochs=2)), devices=DevicesConfig([1]))
    with pytest.raises(ConfigError, match="the length of an epoch is not known"):
        build_graph(elsewhere, "validation", train=True)


def test_each_device_may_take_a_batch_of_the_data() -> None:
    several = train(on(config("nested", "nested"), 2, batch=DeviceBatch["per_device"]), 1)
    one = train(config("nested", "nested", train=TrainConfig(accumulate=2)), 1)
    require_equal(several, one, DOUBLE)


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("counting", "the tf.Variable"),
        ("unseeded", "a keras.Variable that the model does not list"),
        ("pooled", "an output of type .* shape"),
        ("spectral", "assigns .*kernel, which trains"),
    ],
)
def test_what_devices_cannot_share_is_refused(model: str, shown: str) -> None:
    several = on(config(model, dtype="float32", loss="mse"), 2)
    with pytest.raises(ConfigError, match=shown):
        build_graph(several, "validation", train=True)


@pytest.mark.parametrize(
    ("gpus", "count", "names"),
    [
        (2, 1, ()),
        (2, 2, ("/gpu:0", "/gpu:1")),
        (4, "all", ("/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3")),
        (4, [3, "GPU:1"], ("/gpu:3", "/gpu:1")),
        (1, ["/gpu:0", "cpu:0"], ("/gpu:0", "/cpu:0")),
        (0, 2, ("/cpu:0", "/cpu:1")),
        (0, "all", ()),
        (
            2,
            3,
            "there is no /gpu:2\n  cause: TensorFlow sees 2 GPUs.*\n.*\n  choices: gpu:0, gpu:1",
        ),
        (0, ["gpu:0"], "there is no /gpu:0\n  cause: TensorFlow sees no GPU"),
        (0, 99, "/cpu:16 is beyond the 16 logical CPU devices"),
        (0, [0, "cpu:0"], "devices names /cpu:0 more than once"),
    ],
)
def test_the_devices_of_a_machine(
    gpus: int, count: Any, names: tuple[str, ...] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = {"GPU": range(gpus), "CPU": range(1)}
    monkeypatch.setattr(tf.config, "list_physical_devices", present.get)
    if isinstance(names, str):
        with pytest.raises(ConfigError, match=names):
            devices_of(DevicesConfig(count=count))
    else:
        assert devices_of(DevicesConfig(count=count)).names == names
