"""A composed configuration is checked as a whole, and every problem is reported at once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config.choices import Goal, Missing
from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig, register
from runner.config.validation import no_experiment, validate
from runner.errors import ConfigError, Problem

TARGET = {"_target_": "package.Name"}


def composed(**changes: Any) -> DictConfig:
    """A valid configuration with changes at its root, as Hydra hands it over."""
    register()
    schema = ConfigStore.instance().load("runner_config.yaml").node
    valid = {"name": "x", "data": TARGET, "model": TARGET, "loss": TARGET, "optimizer": TARGET}
    config = OmegaConf.merge(schema, valid | changes)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    return config


def problems(config: DictConfig) -> list[Problem]:
    with pytest.raises(ConfigError) as error:
        validate(config)
    return list(error.value.problems)


def problem(config: DictConfig) -> Problem:
    (found,) = problems(config)
    return found


def test_a_valid_configuration_becomes_typed() -> None:
    config = validate(
        composed(
            train={"goal": "maximize", "objective": "validation/accuracy"},
            metrics={"accuracy": TARGET},
            data={**TARGET, "seed": "${seed}"},
            seed=7,
        )
    )
    assert isinstance(config, RunConfig)
    assert config.train.goal is Goal.maximize
    assert config.data == {**TARGET, "seed": 7}
    assert (config.run_dir, config.scaffolds) == ("runs/x", {})


def test_a_learning_rate_that_is_none_is_told_with_the_rest() -> None:
    config = composed(optimizer={**TARGET, "learning_rate": "x"}, train={"steps": 0})
    states = [each.state for each in problems(config)]
    assert states == ["optimizer.learning_rate is 'x'", "train.steps is 0"]


def test_what_was_given_is_not_changed() -> None:
    config = composed(scaffolds=[{"name": "a", "variables": {"include": ["*"]}}])
    with open_dict(config):
        del config["seed"]
    before = OmegaConf.to_yaml(config)
    validate(config)
    assert OmegaConf.to_yaml(config) == before
    assert OmegaConf.is_struct(config)


SCAFFOLD = {"variables": {"include": ["a/*"]}, "checkpoint": "experiment:a", "missing": "init"}
EXPECTED = ScaffoldConfig(VariablesConfig(["a/*"]), "experiment:a", missing=Missing.init)


def test_a_mapping_of_scaffolds_keeps_its_order() -> None:
    config = validate(composed(scaffolds={"b": SCAFFOLD, "a": SCAFFOLD}))
    assert list(config.scaffolds.items()) == [("b", EXPECTED), ("a", EXPECTED)]


def test_a_list_of_scaffolds_is_the_same_as_a_mapping() -> None:
    entries = [{"name": "b", **SCAFFOLD}, {"name": "a", **SCAFFOLD}]
    config = validate(composed(scaffolds=entries))
    assert list(config.scaffolds.items()) == [("b", EXPECTED), ("a", EXPECTED)]


def test_no_experiment_is_the_only_problem() -> None:
    config = composed(name="???", train={"steps": 0})
    with pytest.raises(ConfigError, match="no experiment is named") as error:
        validate(config, ["b", "a"])
    assert error.value.problems == (no_experiment(["b", "a"]),)
    assert error.value.problems[0].choices == ("a", "b")


def test_a_key_without_a_value() -> None:
    assert problem(composed(model="???")).state == "model has no value"


def test_a_deleted_key_has_its_default_again() -> None:
    config = composed(train={"steps": 5})
    with open_dict(config):
        del config["train"], config["seed"]
    assert (validate(config).train.steps, validate(config).seed) == (RunConfig().train.steps, 0)


def test_a_deleted_key_without_default_has_no_value() -> None:
    config = composed()
    with open_dict(config):
        del config["loss"]
    assert problem(config).state == "loss has no value"


def test_an_interpolation_that_leads_nowhere() -> None:
    found = problem(composed(model={**TARGET, "classes": "${data.modulu}"}, data={"modulus": 3}))
    assert found.state == "model.classes cannot be resolved"
    assert found.choices == ("data.modulus",)


def test_an_interpolation_of_a_missing_key() -> None:
    found = problem(composed(run_dir="${model.x}", model={**TARGET, "x": "???"}))
    assert found.state == "run_dir cannot be resolved"


def test_keys_that_a_plus_added() -> None:
    config = composed()
    OmegaConf.update(config, "foo", 1, force_add=True)
    OmegaConf.update(config, "train.step", 1, force_add=True)
    step, foo = problems(config)
    assert foo.state == "foo is not a key of the configuration"
    assert step.state == "train.step is not a key of the configuration"
    assert step.choices[0] == "train.steps"


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_does_not_take(seed: int) -> None:
    assert problem(composed(seed=seed)).state == f"seed is {seed}"


def test_an_empty_name() -> None:
    assert problem(composed(name=" ")).state == "name is empty"


@pytest.mark.parametrize("value", [{"x": 1}, {}])
def test_a_part_without_target(value: dict[str, Any]) -> None:
    assert problem(composed(data=value)).state == "data has no _target_"


@pytest.mark.parametrize("group", ["metrics", "hooks"])
@pytest.mark.parametrize("value", [None, 3, {"x": 1}])
def test_an_entry_without_target(group: str, value: Any) -> None:
    found = problem(composed(**{group: {"mine": value}}))
    assert found.state == f"{group}.mine has no _target_"
    assert "_target_: package.module.Name" in found.remedy


@pytest.mark.parametrize(("key", "least"), [("intra_op_threads", 0), ("inter_op_threads", -1)])
def test_numbers_of_threads(key: str, least: int) -> None:
    validate(composed(session={key: least}))
    found = problem(composed(session={key: -2}))
    assert (found.state, found.cause) == (f"session.{key} is -2", f"it must be at least {least}")


@pytest.mark.parametrize("key", ["steps", "keep_checkpoints", "accumulate"])
def test_numbers_of_steps_begin_at_one(key: str) -> None:
    validate(composed(train={key: 1}))
    found = problem(composed(train={key: 0}))
    assert (found.state, found.cause) == (f"train.{key} is 0", "it must be at least 1")


@pytest.mark.parametrize("key", ["log_every", "evaluate_every", "checkpoint_every"])
def test_a_rhythm_is_a_schedule(key: str) -> None:
    validate(composed(train={key: 1}))
    validate(composed(train={key: "10 minutes"}))
    found = problem(composed(train={key: 0}))
    assert found.state == f"train.{key} is 0"
    assert found.cause == "every 0 steps; it must be more than 0"
    assert "'often' is no schedule" in problem(composed(train={key: "often"})).cause


@pytest.mark.parametrize(
    ("train", "state"),
    [
        ({"clip": {"norm": 0.0}}, "train.clip.norm is 0"),
        ({"clip": {"value": -1.0}}, "train.clip.value is -1"),
        ({"clip": {"global_norm": float("nan")}}, "train.clip.global_norm is nan"),
        ({"ema_decay": 1.0}, "train.ema_decay is 1"),
        ({"non_finite": {"rollbacks": 0}}, "train.non_finite.rollbacks is 0"),
        (
            {"non_finite": {"learning_rate_scale": 2.0}},
            "train.non_finite.learning_rate_scale is 2",
        ),
    ],
)
def test_a_number_out_of_its_range(train: dict[str, Any], state: str) -> None:
    assert problem(composed(train=train)).state == state


@pytest.mark.parametrize("size", [1, "auto", [8], {"train": 8}, None])
def test_a_batch_size_that_its_data_may_take(size: Any) -> None:
    validate(composed(data={**TARGET, "batch_size": size}))


@pytest.mark.parametrize("size", [0, -1, 0.5])
def test_a_batch_size_that_is_none(size: Any) -> None:
    found = problem(composed(data={**TARGET, "batch_size": size}))
    assert found.state == f"data.batch_size is {size!r}"
    assert found.cause == "it must be at least 1"


def test_the_switches_of_the_model() -> None:
    switches = {"jit_compile": True, "dtype_policy": "mixed_bfloat16"}
    validate(composed(model={**TARGET, **switches}))
    found = problem(composed(model={**TARGET, "jit_compile": "yes"}))
    assert found.state == "model.jit_compile is 'yes'"
    found = problem(composed(model={**TARGET, "dtype_policy": "bfloat16"}))
    assert found.state == "model.dtype_policy is 'bfloat16'"
    assert found.choices[0] == "mixed_bfloat16"


def test_an_objective_that_no_evaluation_produces() -> None:
    config = composed(train={"objective": "validation/acc"}, metrics={"accuracy": TARGET})
    found = problem(config)
    assert found.state == "train.objective is 'validation/acc'"
    assert found.choices == ("validation/accuracy", "validation/loss")


@pytest.mark.parametrize(
    ("export", "tracking", "state"),
    [
        ({"register": "a/b"}, {}, "export.register is 'a/b'"),
        ({"register": " "}, {}, "export.register is ' '"),
        (
            {"register": "net"},
            {"uri": None},
            "export.register is 'net', and runs are not recorded in MLflow",
        ),
        ({"alias": "champion"}, {}, "export.alias is 'champion', but no model is registered"),
        ({"register": "net", "alias": "v2"}, {}, "export.alias is 'v2'"),
        ({"register": "net", "alias": "Latest"}, {}, "export.alias is 'Latest'"),
        ({"register": "net", "alias": "a b"}, {}, "export.alias is 'a b'"),
    ],
)
def test_a_model_that_cannot_be_registered(
    export: dict[str, str], tracking: dict[str, None], state: str
) -> None:
    assert problem(composed(export=export, tracking=tracking)).state == state


@pytest.mark.parametrize(
    ("scaffolds", "state"),
    [
        (5, "scaffolds is 5"),
        ("cnn", "scaffolds is 'cnn'"),
        ({"cnn": 3}, "scaffolds.cnn is 3"),
        ({"cnn": None}, "scaffolds.cnn is None"),
        ([{"checkpoint": "x"}], "scaffolds.0 has no name"),
        ([3], "scaffolds.0 has no name"),
        ([{"name": "a", **SCAFFOLD}, {"name": "a", **SCAFFOLD}], "two scaffolds are named 'a'"),
        ({"a": {}}, "scaffolds.a.variables.include has no value"),
        ({"a": {**SCAFFOLD, "chekpoint": "x"}}, "scaffolds.a.chekpoint is not a key of a scaffold"),
        ([{"name": "a", **SCAFFOLD, "x": 1}], "scaffolds.a.x is not a key of a scaffold"),
        ({"a": {**SCAFFOLD, "trainable": "maybe"}}, "scaffolds.a.trainable has a value"),
        ({"a": {**SCAFFOLD, "missing": "ignore"}}, "scaffolds.a.missing has a value"),
        ({"a": {**SCAFFOLD, "rename": ["a"]}}, "scaffolds.a.rename has a value"),
        ({"a": {"variables": {"include": "a"}}}, "scaffolds.a.variables.include has a value"),
        ({"a": {"variables": {"only": ["a"]}}}, "scaffolds.a.variables.only is not a key"),
    ],
)
def test_scaffolds(scaffolds: Any, state: str) -> None:
    assert problem(composed(scaffolds=scaffolds)).state.startswith(state)


def test_the_choices_within_scaffolds() -> None:
    misspelt = problem(composed(scaffolds={"a": {**SCAFFOLD, "chekpoint": "x"}}))
    assert misspelt.choices[0] == "checkpoint"
    assert set(misspelt.choices) == {each.name for each in fields(ScaffoldConfig)}
    bad_enum = problem(composed(scaffolds={"a": {**SCAFFOLD, "missing": "ignore"}}))
    assert bad_enum.choices == ("error", "init")


def test_every_problem_is_reported_at_once() -> None:
    config = composed(
        model="???",
        loss={},
        train={"steps": 0, "objective": "x"},
        scaffolds={"a": {"trainable": "maybe", "optional": "maybe"}, "b": 3},
    )
    assert [each.state.split(" ")[0] for each in problems(config)] == [
        "model",
        "loss",
        "train.steps",
        "scaffolds.a.trainable",
        "scaffolds.a.optional",
        "scaffolds.b",
        "train.objective",
    ]


def test_a_configuration_over_another_schema_is_a_programming_error() -> None:
    plain = OmegaConf.create(OmegaConf.to_container(composed()))
    assert isinstance(plain, DictConfig)
    with pytest.raises(TypeError, match="not composed over RunConfig but <class 'dict'>"):
        validate(plain)
