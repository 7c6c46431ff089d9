"""Training on several devices equals training on one; logical CPU devices stand for GPUs.

On a machine with two GPUs, `make gpu-check` runs the same tests on them; one GPU is left alone.
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
from runner.internals.keras import activity_losses_are_means
from tests.samples.graphs import Opened, opened, training_of
from tests.support.configs import tiny

MOMENTUM = {
    "_target_": "tensorflow.compat.v1.train.MomentumOptimizer",
    "learning_rate": 0.05,
    "momentum": 0.9,
}
STEPS = 4
KIND = "GPU" if len(tf.config.list_logical_devices("GPU")) > 1 else "CPU"
FIRST, SECOND = f"/device:{KIND}:0", f"/device:{KIND}:1"


def config(
    model: str, kind: str = "", dtype: str = "float64", policy: str = "float32", **changes: Any
) -> RunConfig:
    fields: dict[str, Any] = {
        "data": {"_target_": "tests.samples.parallel.Examples", "kind": kind, "dtype": dtype},
        "model": {"_target_": f"tests.samples.parallel.{model}", "dtype_policy": policy},
        "loss": None,
        "metrics": {},
        "optimizer": MOMENTUM,
        "seed": 3,
    }
    return tiny(**{**fields, **changes})


def on(config: RunConfig, count: int, **options: Any) -> RunConfig:
    """Returns a configuration that trains on a number of devices."""
    names = [f"{KIND}:{number}" for number in range(count)]
    return replace(config, devices=DevicesConfig(count=names, **options))


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
    "metrics": {"accuracy": "accuracy", "share": {"_target_": "tests.samples.parallel.Share"}},
    "dtype": "float32",
}
ADAM = {"_target_": "keras.optimizers.AdamW", "learning_rate": 0.01, "use_ema": True}
HEAD = {"head": ScaffoldConfig(VariablesConfig(["hidden/*"]), trainable=False)}
SGD = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9}
SCALED = {
    "_target_": "keras.optimizers.LossScaleOptimizer",
    "inner_optimizer": SGD,
    "initial_scale": 1024.0,
}
DOUBLE = 1e-12
ROWS = {
    "regularizers, add_loss, metrics of layers": (config("dense"), DOUBLE),
    "convolutions, synchronised batch norm, masks": (config("norms"), DOUBLE),
    "fewer examples than devices": (config("dense", "rest of one"), DOUBLE),
    "batch norm of fewer": (config("norms", "rest of one"), DOUBLE),
    # TensorFlow 1's optimizers leave rows without a gradient alone; sums have all rows.
    "recurrent, sparse gradients": (config("recurrent", optimizer=SGD), DOUBLE),
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
    # A device's gradients are larger than those of the whole batch, and overflow earlier: the scale
    # is one that neither leaves a step out for.
    "float16": (
        config("single", "classes", policy="mixed_float16", optimizer=SCALED, **CLASSES),
        5e-3,
    ),
}


# Long, and other rows have most of it.
AT_LENGTH = (
    "batch norm of fewer",
    "sample weights",
    "accumulated batch norm",
    "Keras's optimizer",
    "a step of its own, differentiated twice",
    "bfloat16",
    "float16",
)


@pytest.mark.parametrize("row", [row for row in ROWS if row not in AT_LENGTH])
def test_several_devices_do_what_one_does_with_the_whole_batch(row: str) -> None:
    config, tolerance = ROWS[row]
    several = train(on(config, 2, sync_batch_norm=True))
    require_equal(several, train(config), tolerance)


@pytest.mark.soak
@pytest.mark.parametrize("row", [row for row in ROWS if row in AT_LENGTH or ROWS[row][1] == DOUBLE])
def test_after_many_steps_too(row: str) -> None:
    config, tolerance = ROWS[row]
    steps = 50 if tolerance == DOUBLE else STEPS
    several = train(on(config, 2, sync_batch_norm=True), steps)
    require_equal(several, train(config, steps), tolerance)


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
        pytest.param(config("recurrent", optimizer=SGD), marks=pytest.mark.soak),
        pytest.param(
            config("critic", "features", dtype="float32", optimizer={}), marks=pytest.mark.soak
        ),
    ],
)
def test_each_device_differentiates_what_it_computed(config: RunConfig) -> None:
    built = build_graph(on(config, 2), "validation", train=True)
    placed = {
        operation.device
        for operation in built.graph.get_operations()
        if operation.name.startswith("train/replica_1/") and "gradient" in operation.name
    }
    assert placed == {SECOND}
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
    for sync, shown in ((True, "of the whole batch"), (False, "each replica's own statistics")):
        several = on(few, 2, sync_batch_norm=sync)
        notes = "\n".join(build_graph(several, "validation", train=True).notes)
        assert shown in notes
        assert re.search(r"/[cg]pu:0, /[cg]pu:1 divide every batch", notes)
        assert re.search(r"each of 2 .* gives [\d,]{3,} bytes of gradients", notes)
    assert build_graph(few, "validation", train=True).notes == ()


def test_dropout_differs_between_devices_and_repeats_between_runs() -> None:
    several = on(config("random", "even", "float32", loss="mse", optimizer=SGD), 2)
    drawn = []
    for _ in range(2):
        with opened(several, cpus=2) as run:
            masks = [
                operation.outputs[0]
                for operation in run.built.graph.get_operations()
                if operation.type == "StatelessRandomUniformV2"
            ]
            assert len(masks) == 2
            drawn.append(run.run(masks))
    for first, second in zip(*drawn, strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(*drawn[0])


def test_a_device_without_examples_adds_nothing_to_gradients() -> None:
    several = train(on(config("norms", "rest of one"), 2))
    assert all(np.isfinite(values).all() for values in several.variables.values())


def test_epochs_are_counted_beside_a_model_on_another_device_than_the_first() -> None:
    elsewhere = replace(
        config("dense", train=TrainConfig(epochs=2)), devices=DevicesConfig([f"{KIND}:1"])
    )
    with pytest.raises(ConfigError, match="the length of an epoch is not known"):
        build_graph(elsewhere, "validation", train=True)


def test_each_device_may_take_a_batch_of_the_data() -> None:
    several = train(on(config("nested", "nested"), 2, batch=DeviceBatch["per_device"]), 1)
    one = train(config("nested", "nested", train=TrainConfig(accumulate=2)), 1)
    require_equal(several, one, DOUBLE)


@pytest.mark.parametrize("model", ["counting", pytest.param("spectral", marks=pytest.mark.soak)])
def test_state_that_does_not_depend_on_the_batch_is_that_of_one_device(model: str) -> None:
    several = config(model, "classes", **CLASSES)
    require_equal(train(on(several, 2)), train(several), 1e-5)


def test_random_numbers_of_kerass_global_seed_are_drawn_too() -> None:
    assert len(train(on(config("unseeded", "classes", **CLASSES), 2)).steps) == STEPS


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"loss": {"_target_": "keras.losses.MeanSquaredError", "reduction": "sum"}}, "'sum'"),
        (
            {"loss": "mse", "metrics": {"top": {"_target_": "tests.samples.parallel.Largest"}}},
            "variable largest/value has the aggregation 'mean'",
        ),
    ],
)
def test_what_cannot_be_summed_is_refused(changes: dict[str, Any], shown: str) -> None:
    several = on(config("single", "classes", dtype="float32", **changes), 2)
    with pytest.raises(ConfigError, match=shown):
        build_graph(several, "validation", train=True)


@pytest.mark.skipif(activity_losses_are_means(), reason="here Keras has means of activities")
def test_sums_over_the_examples_of_activities_are_refused() -> None:
    with pytest.raises(ConfigError, match="layer head has an activity_regularizer"):
        build_graph(on(config("active"), 2), "validation", train=True)


@pytest.mark.parametrize(
    ("gpus", "count", "names"),
    [
        (2, 1, ()),
        (2, 2, ("/gpu:0", "/gpu:1")),
        (4, "all", ("/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3")),
        (4, [3, "GPU:1"], ("/gpu:3", "/gpu:1")),
        (1, ["/gpu:0", "cpu:0"], "TensorFlow sums gradients over devices of one kind"),
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
