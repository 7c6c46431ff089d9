"""Models with steps of their own: names, scaffolds, errors; `test_keras_programs` trains them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from runner.config.choices import Mode, PlanFormat, StateClass
from runner.config.schema import (
    EvaluateConfig,
    PlanConfig,
    RunConfig,
    ScaffoldConfig,
    VariablesConfig,
)
from runner.errors import ConfigError, UserCodeError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from tests.samples.graphs import opened
from tests.samples.steps import compiled_parts, gan, lookahead, unbuilt, vae
from tests.support.configs import tiny
from tests.support.runs import Runs, short


def config(program: Callable[[], keras.Model], **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "seed": 3,
        "data": {"_target_": "tests.samples.steps.Numbers", "labelled": False},
        "model": {"_target_": f"tests.samples.steps.{program.__name__}"},
        "loss": None,
        "metrics": {},
        "optimizer": {},
    }
    return tiny(**{**fields, **changes})


def test_names_in_checkpoints_are_those_of_the_models_attributes() -> None:
    built = build_graph(config(gan), "validation", train=True)
    states = {spec.tensor.name: spec.state for spec in built.specs}
    assert states["generator/dense_2/kernel"] is StateClass.weights
    assert states["generator/dense_2/kernel/g_optimizer/velocity"] is StateClass.optimizer_slots
    assert states["discriminator/dense/kernel/d_optimizer/momentum"] is StateClass.optimizer_slots
    assert {"d_optimizer/iterations", "g_optimizer/iterations"} <= set(states)
    assert not any("loss" in name for name in states)


def test_a_part_starts_from_a_checkpoint_and_is_frozen(tmp_path: Path) -> None:
    source = Runs(tmp_path / "source")
    source.start(config(vae, run_dir=str(source.folder), train=short()))
    scaffolds = {
        "encoder": ScaffoldConfig(
            VariablesConfig(["encoder/*"]), str(source.folder / "001"), trainable=False
        )
    }
    runs = Runs(tmp_path / "runs")
    runs.start(config(vae, run_dir=str(runs.folder), train=short(), scaffolds=scaffolds))
    trained, expected = runs.values(), source.values()
    names = [name for name in expected if name.startswith("encoder/dense") and "opti" not in name]
    assert len(names) == 4
    for name in names:
        assert np.array_equal(trained[name], expected[name])
    assert not np.array_equal(trained["decoder/dense_2/kernel"], expected["decoder/dense_2/kernel"])


def test_a_model_without_test_step_and_loss_is_trained_and_not_evaluated(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.start(config(gan, run_dir=str(tmp_path), train=short()), print_next_commands=True)
    assert "evaluation: none, the model has neither a test_step nor a loss of labels" in str(
        runs.lines()
    )
    assert runs.record().trained
    assert "mode=export" in runs.lines()[-1]
    assert runs.lines()[-1].endswith(" export.which=latest")
    assert "mode=evaluate" not in str(runs.lines())
    changes = {"mode": Mode.evaluate, "evaluate": EvaluateConfig(which="latest")}
    with pytest.raises(ConfigError, match="evaluates nothing"):
        runs.start(config(gan, run_dir=str(tmp_path), train=short(), **changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"loss": "mse"}, "loss"), ({"metrics": {"accuracy": "accuracy"}}, "metrics")],
)
def test_what_the_models_step_leaves_without_effect_is_an_error(
    changes: Mapping[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key} is set, and .*vae.train_step does not use it"):
        build_graph(config(vae, **changes), "validation", train=True)


@pytest.mark.parametrize("way", ["numpy", "float", "if", "loop", "array", "rate", "variable"])
def test_a_step_that_reads_a_value_is_an_error_with_its_line_and_the_way_out(way: str) -> None:
    model = {"_target_": "tests.samples.steps.eager_only", "way": way}
    with pytest.raises(UserCodeError) as caught:
        build_graph(config(vae, model=model), "validation", train=True)
    (problem,) = caught.value.problems
    assert "tests.samples.steps.eager_only.train_step was called" in problem.state
    assert "traced once into a graph" in problem.cause
    assert "runner.warm_start" in problem.remedy
    assert f'"{way}": lambda: ' in caught.value.details


def test_slots_of_several_optimizers_start_from_a_run(tmp_path: Path) -> None:
    source, runs = Runs(tmp_path / "source"), Runs(tmp_path / "runs")
    source.start(config(gan, run_dir=str(source.folder), train=short()))
    scaffold = ScaffoldConfig(
        VariablesConfig(["discriminator/*"]),
        str(source.folder / "001"),
        state=[StateClass.weights, StateClass.optimizer_slots],
    )
    settings: dict[str, Any] = {"run_dir": str(runs.folder), "scaffolds": {"critic": scaffold}}
    runs.start(config(gan, mode=Mode.plan, plan=PlanConfig(PlanFormat.json), **settings))
    plan = json.loads("\n".join(runs.lines()))
    origins = {variable["name"]: variable["origin"] for variable in plan["variables"]}
    slots = {name for name in origins if "_optimizer/" in name}
    restored = {name for name in slots if origins[name] == "checkpoint"}
    assert len(restored) == 9
    assert restored - {"d_optimizer/iterations"} == {
        name for name in slots if name.startswith("discriminator/")
    }
    runs.start(config(gan, train=short(steps=1), **settings))
    counts = [runs.values()[f"{name}_optimizer/iterations"] for name in "dg"]
    assert counts == [21, 1]


def returning(kind: str, **settings: Any) -> BuiltGraph:
    model = {"_target_": "tests.samples.steps.logging", "kind": kind, **settings}
    return build_graph(config(vae, model=model), "validation", train=True)


def test_nested_logs_have_the_names_that_fit_gives_them() -> None:
    training = returning("nested").training
    assert training is not None
    assert set(training.values) == {"error", "norm", "loss"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing", "logging.train_step returns no metrics"),
        ("larger", "logging.train_step returns no metrics"),
        ("metric", "returns 'loss', which is not a number"),
        ("string", "returns 'loss', which is not a number"),
    ],
)
def test_a_step_that_returns_no_numbers_is_an_error(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        returning(kind)


def test_settings_of_compile_without_effect_are_reported() -> None:
    notes = returning("nested", steps_per_execution=4, run_eagerly=True).notes
    assert [note.split(":")[0] for note in notes] == ["steps", "run_eagerly", "steps_per_execution"]


def test_the_optimizer_of_a_compiled_part_is_named_after_the_part() -> None:
    names = set(build_graph(config(compiled_parts), "validation", train=True).variables)
    assert {"discriminator_optimizer/iterations", "generator_optimizer/iterations"} <= names
    assert not [name for name in names if name.startswith(("adam", "rms", "loss"))]


def test_an_optimizer_may_assign_the_slots_that_it_creates() -> None:
    data = {"_target_": "tests.samples.steps.Numbers"}
    with opened(config(lookahead, data=data)) as run:
        for name in ("dense/kernel", "dense_1/kernel"):
            slot, weight = (run.built.variables[key] for key in (f"{name}/Lookahead/slow", name))
            assert np.array_equal(*run.session.run([slot, weight]))


def test_the_first_values_of_a_model_that_its_first_call_builds_are_its_initializers() -> None:
    data = {"_target_": "tests.samples.steps.Numbers"}
    built = build_graph(config(unbuilt, data=data), "validation", train=True)
    initializers = {spec.name: spec.initializer for spec in built.specs}
    assert initializers["hidden/kernel"] == "GlorotUniform"
    assert initializers["hidden/bias"] == "Zeros"
