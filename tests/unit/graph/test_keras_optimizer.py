"""Keras's optimizers in a run: the names of their state, resumption, and Keras's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import runner
from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import StateClass
from runner.config.schema import ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import ConfigError
from runner.planning.optimizer_slots import Slots
from runner.tracking import RunStore
from runner.training.run_sources import Sources, plan_run
from tests.samples.graphs import build, opened
from tests.samples.odd import two_branches
from tests.support.configs import PLAIN, tiny

_KERAS = keras.optimizers


def adam_w(**changes: Any) -> dict[str, Any]:
    return {"_target_": "keras.optimizers.AdamW", "learning_rate": 0.01, **changes}


COSINE: dict[str, Any] = {
    "_target_": "keras.optimizers.schedules.CosineDecay",
    "initial_learning_rate": 0.5,
    "decay_steps": 10,
}


def _scaffolds() -> dict[str, ScaffoldConfig]:
    return {
        "head": ScaffoldConfig(VariablesConfig(["head/*"]), learning_rate_multiplier=0.5),
        "body": ScaffoldConfig(VariablesConfig(["body/*"]), freeze_until_step=2),
    }


def test_its_variables_are_called_and_classed_as_those_of_tensorflows_optimizers() -> None:
    built = build(tiny(**PLAIN, optimizer=adam_w(use_ema=True)))
    states = {spec.name: spec.state for spec in built.specs}
    kernels = [name for name in states if name.endswith("/kernel")]
    assert kernels
    for name in kernels:
        assert states[f"{name}/AdamW/momentum"] is StateClass.optimizer_slots
        assert states[f"{name}/AdamW/velocity"] is StateClass.optimizer_slots
        assert states[f"{name}/ExponentialMovingAverage"] is StateClass.moving_averages
    (once,) = [spec for spec in built.specs if spec.name == "AdamW/iterations"]
    assert once.state is StateClass.optimizer_slots
    assert set(once.shared_by) == {spec.name for spec in built.specs if spec.trainable}
    assert len(states) == len(kernels) * 2 * 4 + 2, "and nothing has another name"


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_an_eager_program_has_the_names_of_a_run(policy: str) -> None:
    keys = {**PLAIN, "model": {**PLAIN["model"], "dtype_policy": policy}}
    built = build(tiny(**keys, optimizer=adam_w(use_ema=True)))
    assert built.model is not None
    model = built.model.model
    plan = runner.plan(model, {}, optimizer=model.optimizer)
    ours = {a.variable.name: a.variable for a in plan.assignments}
    named = {spec.name: spec for spec in built.specs if spec.name != "global_step"}
    assert ours.keys() - {"AdamW/loss_scale/iterations"} == named.keys()  # Steps do not use it.
    for name, spec in named.items():
        assert (spec.state, {*spec.shared_by}) == (ours[name].state, {*ours[name].shared_by})


def test_averages_that_overwrite_the_weights_are_no_values_that_the_model_loads() -> None:
    optimizer = adam_w(use_ema=True, ema_overwrite_frequency=2)
    assert build(tiny(**PLAIN, optimizer=optimizer)).training is not None


@pytest.mark.parametrize(
    "changes",
    [
        {
            "optimizer": adam_w(use_ema=True, clipnorm=0.5),
            "scaffolds": _scaffolds(),
            "train": TrainConfig(accumulate=2),
        },
        {
            "optimizer": {"_target_": "tests.samples.odd.own_rate"},
            "model": {**PLAIN["model"], "dtype_policy": "mixed_float16"},
        },
        {
            "optimizer": {
                "_target_": "tests.samples.odd.bias_spared",
                "learning_rate": {**COSINE, "initial_learning_rate": 0.1},
                "decay": 0.1,
            }
        },
    ],
)
def test_a_checkpoint_resumes_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    built = build(tiny(**{**PLAIN, **changes}))
    with opened(built) as run:
        run.train(3)
        prefix = run.save(tmp_path)
        expected = [*run.train(3), run.evaluate()]
    with opened(built, restore=prefix) as run:
        assert [*run.train(3), run.evaluate()] == expected


def test_a_frozen_variable_is_left_alone_and_a_multiplier_multiplies() -> None:
    settings = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.1}
    with opened(tiny(**PLAIN, optimizer=settings, scaffolds=_scaffolds())) as run:
        names = ("body/kernel", "head/kernel")
        frozen, before = run.values(*names)
        run.train(2)
        still, after = run.values(*names)
        assert np.array_equal(frozen, still)
        assert not np.array_equal(before, after)
        run.train()
        assert not np.array_equal(run.values("body/kernel")[0], frozen)


def compiled(optimizer: Any) -> dict[str, Any]:
    return {"_target_": "tests.samples.odd.compiled", "optimizer": optimizer, "_recursive_": False}


@pytest.mark.parametrize(
    "optimizer",
    [
        adam_w(weight_decay=0.2, clipnorm=0.5, use_ema=True),
        {
            "_target_": "keras.optimizers.SGD",
            "learning_rate": {"_target_": "tests.samples.odd.Halved", "rate": 0.5},
        },
    ],
    ids=["rate", "own schedule"],
)
def test_a_compiled_models_optimizer_is_as_if_configured(optimizer: dict[str, Any]) -> None:
    config = tiny(**PLAIN, loss=None, optimizer=optimizer)
    config.model = compiled(optimizer)
    results = []
    for node in (optimizer, {}):
        config.optimizer = node
        with opened(config) as run:
            run.train(3)
            notes = run.built.notes
            results.append((run.values(*run.built.variables), [*run.built.variables]))
    assert results[0][1] == results[1][1]
    for one, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not notes


@pytest.mark.parametrize(
    ("optimizer", "changes", "message"),
    [
        (adam_w(use_ema=True), {"train": TrainConfig(ema_decay=0.9)}, "delete one of the two"),
        pytest.param(
            {"_target_": "keras.optimizers.ScheduleFreeAdamW"},
            {"scaffolds": {"body": ScaffoldConfig(VariablesConfig(["body/*"]), "somewhere")}},
            "copy of the weights",
            marks=pytest.mark.skipif(
                not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="not in Keras 3.12"
            ),
        ),
        ({"_target_": "keras.layers.Dense", "units": 3}, {}, "is not an optimizer"),
        (
            {"learning_rate": 0.1},
            {"model": compiled(adam_w()), "loss": None},
            "optimizer.learning_rate is set, and the model has an optimizer of its own",
        ),
    ],
)
def test_what_is_no_optimizer_or_contradicts_it_is_refused(
    optimizer: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(tiny(**{**PLAIN, "optimizer": optimizer, **changes}))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"_target_": "tests.samples.odd.any_rate"},
        {"_target_": "tests.samples.odd.bias_spared", "learning_rate": 0.1, "decay": 0.1},
    ],
)
def test_an_optimizer_that_its_configuration_does_not_describe_trains(
    optimizer: dict[str, Any],
) -> None:
    with opened(tiny(**{**PLAIN, "optimizer": {}, "model": compiled(optimizer)}, loss=None)) as run:
        before = run.values("head/kernel")
        run.train(2)
        assert not np.array_equal(before, run.values("head/kernel"))


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own.
@pytest.mark.parametrize(
    ("optimizer", "ending"),
    [("AdamW", "keras"), ("SGD", "weights.h5"), ("Adam", "keras")],
)
def test_slots_of_keras_files_are_restored(optimizer: str, ending: str, tmp_path: Path) -> None:
    scaled = optimizer == "Adam"  # Keras scales the loss of a model of mixed precision.
    layers = [keras.layers.Dense(4, name="body"), keras.layers.Dense(2, name="head")]
    model = keras.Sequential(layers)
    model.build((None, 8))
    # A schedule has no variable.
    rate = keras.optimizers.schedules.CosineDecay(0.1, 9) if optimizer == "SGD" else 0.1
    settings: dict[str, Any] = {
        "use_ema": True,
        **({"momentum": 0.9} if optimizer == "SGD" else {}),
    }
    inner = getattr(_KERAS, optimizer)(rate, **settings)
    model.compile(_KERAS.LossScaleOptimizer(inner) if scaled else inner, "mse")
    gradients = [tf.ones_like(weight) for weight in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    path = str(tmp_path / f"model.{ending}")
    (model.save if ending == "keras" else model.save_weights)(path)
    node = {"_target_": f"keras.optimizers.{optimizer}", "learning_rate": 0.1, **settings}
    slots = [StateClass.optimizer_slots, StateClass.moving_averages]
    source = ScaffoldConfig(VariablesConfig(["*"]), checkpoint=path, state=slots)
    keys = {**PLAIN, "model": {**PLAIN["model"], "dtype_policy": "mixed_float16"}}
    config = tiny(**(keys if scaled else PLAIN), optimizer=node, scaffolds={"body": source})
    plan = plan_run(config, build(config), Sources(config, RunStore()))
    plan.require_sound()
    group = "optimizer/inner_optimizer/vars" if scaled else "optimizer/vars"
    saved = {f"{group}/{n}": variable for n, variable in enumerate(inner.variables)}
    restored = {a.variable.name: a.source_tensor for a in plan.assignments if a.source_tensor}
    assert restored.pop(f"{optimizer}/iterations").names == (f"{group}/0",)
    if scaled:
        scale = {"step_counter": "optimizer/vars/2", "dynamic_scale": "optimizer/vars/3"}
        for name, tensor in scale.items():
            assert restored.pop(f"{optimizer}/loss_scale/{name}").names == (tensor,)
    assert len(restored) >= 8
    for name, source_tensor in restored.items():
        (tensor,) = source_tensor.names
        layer, variable, *_, slot = name.split("/")
        called = "average" if slot == "ExponentialMovingAverage" else slot
        assert saved[tensor].path.endswith(f"{layer}_{variable}_{called}")
        assert np.any(saved[tensor])


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own.
def test_slots_are_matched_in_the_models_order_whatever_was_created_first(tmp_path: Path) -> None:
    model = two_branches()
    model.compile(_KERAS.Adam(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    slots = [StateClass.weights, StateClass.optimizer_slots]
    config = tiny(
        **{**PLAIN, "model": {"_target_": "tests.samples.odd.two_branches"}},
        optimizer={"_target_": "keras.optimizers.Adam", "learning_rate": 0.1},
        scaffolds={"all": ScaffoldConfig(VariablesConfig(["*"]), checkpoint=path, state=slots)},
    )
    plan = plan_run(config, build(config), Sources(config, RunStore()))
    plan.require_sound()
    held = {f"optimizer/vars/{n}": slot.path for n, slot in enumerate(model.optimizer.variables)}
    tensors = {
        assignment.variable.name: assignment.source_tensor.names[0]
        for assignment in plan.assignments
        if assignment.source_tensor
    }
    for name in ("first/kernel", "second/kernel", "head/bias"):
        for slot in ("momentum", "velocity"):
            path = held[tensors[f"{name}/Adam/{slot}"]]
            # Keras numbers the optimizers of a process.
            assert path.partition("/")[2] == f"{name.replace('/', '_')}_{slot}"


def test_slots_of_another_optimizer_are_not_taken() -> None:
    spec = CheckpointSpec("x", None, {}, layers={"optimizer": "rmsprop"})
    assert Slots("SGD", {}).named(spec) is spec
