"""A composed configuration is checked as a whole, and every problem is reported at once.

What each mistake prints is in `mistakes.txt`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config.choices import Goal, Missing, Mode, StateClass
from runner.config.composition import register
from runner.config.schema import (
    RunConfig,
    ScaffoldConfig,
    VariablesConfig,
    VocabularyConfig,
)
from runner.config.validation import no_experiment, validate
from runner.errors import ConfigError, Problem
from tests.support.composing import CONF

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


INPUTS = {"train": TARGET, "validation": TARGET}
DEFAULT_OPTIMIZER: Any = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / "default.yaml"))
EMPTY = {"data": "???", "model": "???", "loss": "???", "optimizer": "???"}


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"model_fn": TARGET, "input_fns": INPUTS}, []),
        ({"graph": TARGET, "optimizer": DEFAULT_OPTIMIZER}, []),
        ({"model_fn": TARGET, "input_fns": {"train": TARGET}}, ["input_fns.validation is missing"]),
        (
            {"model_fn": TARGET, "input_fns": {**INPUTS, "tset": TARGET}},
            ["input_fns.tset is not known"],
        ),
        ({"model_fn": {"a": 1}, "input_fns": INPUTS}, ["model_fn has no _target_"]),
        (
            {"graph": TARGET, "params": {"a": 1}, "optimizer": DEFAULT_OPTIMIZER},
            ["params is set without model_fn"],
        ),
        (
            {"graph": TARGET, "model_fn": TARGET, "input_fns": INPUTS},
            ["model_fn is set beside graph"],
        ),
        (
            {
                "graph": TARGET,
                "optimizer": {**DEFAULT_OPTIMIZER, "learning_rate": 0.1},
                "loss": TARGET,
                "train": {"accumulate": 2, "clip": {"norm": 1.0}},
                "scaffolds": {"a": {"variables": {"include": ["*"]}, "trainable": False}},
            },
            [
                "loss is set beside graph",
                "optimizer is set beside graph",
                "train.accumulate is 2 beside graph",
                "train.clip is set beside graph",
                "scaffolds.a.trainable is false beside graph",
            ],
        ),
    ],
)
def test_a_graph_of_ones_own(changes: dict[str, Any], states: list[str]) -> None:
    config = composed(**{**EMPTY, **changes})
    if states:
        assert [each.state for each in problems(config)] == states
    else:
        assert validate(config).optimizer == {}


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


def test_what_was_given_is_not_changed() -> None:
    config = composed(scaffolds=[{"name": "a", "variables": {"include": ["*"]}}])
    with open_dict(config):
        del config["seed"]
    before = OmegaConf.to_yaml(config)
    validate(config)
    assert OmegaConf.to_yaml(config) == before
    assert OmegaConf.is_struct(config)


SCAFFOLD = {
    "variables": {"include": ["a/*"]},
    "checkpoint": "experiment:a",
    "missing": "init",
    "state": ["weights", "optimizer_slots"],
    "vocabulary": {"emb.x": {"old": "a", "new": "b", "axis": -1}},
}
EXPECTED = ScaffoldConfig(
    VariablesConfig(["a/*"]),
    "experiment:a",
    missing=Missing.init,
    state=[StateClass.weights, StateClass.optimizer_slots],
    vocabulary={"emb.x": VocabularyConfig("a", "b", -1)},
)


@pytest.mark.parametrize(
    "scaffolds",
    [{"b": SCAFFOLD, "a": SCAFFOLD}, [{"name": "b", **SCAFFOLD}, {"name": "a", **SCAFFOLD}]],
    ids=["mapping", "list"],
)
def test_scaffolds_are_typed_and_keep_their_order(scaffolds: Any) -> None:
    config = validate(composed(scaffolds=scaffolds))
    assert list(config.scaffolds.items()) == [("b", EXPECTED), ("a", EXPECTED)]


def test_no_experiment_is_the_only_problem() -> None:
    config = composed(name="???", train={"steps": 0})
    with pytest.raises(ConfigError, match="no experiment is named") as error:
        validate(config, ["b", "a"])
    assert error.value.problems == (no_experiment(["b", "a"], Mode.train),)
    assert error.value.problems[0].choices == ("a", "b")


ACCEPTED: list[dict[str, Any]] = [
    *({"train": {key: "10 minutes"}} for key in ("log_every", "evaluate_every")),
    {"train": {"steps": 1, "keep_checkpoints": 1, "accumulate": 1, "checkpoint_every": 1}},
    {"session": {"intra_op_threads": 0, "inter_op_threads": -1}},
    {"model": {**TARGET, "jit_compile": True, "dtype_policy": "mixed_bfloat16"}},
    {"export": {"register": "net", "alias": "champion"}},
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_what_is_accepted(changes: dict[str, Any]) -> None:
    validate(composed(**changes))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "???"}, "model has no value"),
    ({"seed": 2**32}, "seed is 4294967296"),
    ({"data": {}}, "data has no _target_"),
    *(
        ({group: {"mine": value}}, f"{group}.mine has no _target_")
        for group in ("metrics", "hooks")
        for value in (None, 3)
    ),
    ({"hooks": {"mine": {"x": 1}}}, "hooks.mine has no _target_"),
    ({"metrics": {"mine": {"x": 1}}}, "metrics.mine.x has no _target_"),
    ({"loss": ["mse", None]}, "loss.1 has no _target_"),
    ({"export": {"register": " "}}, "export.register is ' '"),
    ({"export": {"register": "net", "alias": "a b"}}, "export.alias is 'a b'"),
    ({"cluster": {"local": True, "restarts": -1}}, "cluster.restarts is -1"),
    *(
        ({"cluster": {"local": True, key: value}}, f"cluster.{key} is {value:g}")
        for key in ("max_wait_secs", "grace_secs")
        for value in (float("nan"), -1.0)
    ),
    *(
        ({section: {f"{key}_seconds": value}}, f"{section}.{key}_seconds is {value:g}")
        for section, key in (("session", "grace"), ("tracking", "close"), ("tracking", "patience"))
        for value in (float("nan"), float("inf"), -1.0)
    ),
    ({"sweep": {"threshold": float("nan")}}, "sweep.threshold is nan"),
    ({"run_dir": "${model.x}", "model": {**TARGET, "x": "???"}}, "run_dir cannot be resolved"),
    ({"scaffolds": [3]}, "scaffolds.0 has no name"),
    *(
        ({"name": name, "run_dir": "x"}, f"name is {name!r}")
        for name in ("..", "a/../b", "/x", "\0")
    ),
    ({"name": "n" * 300, "run_dir": "x"}, f"name is '{'n' * 59}...'"),
    ({"run_dir": "a\0"}, "run_dir is 'a\\x00'"),
]


@pytest.mark.parametrize(("changes", "state"), REFUSED, ids=str)
def test_what_is_refused(changes: dict[str, Any], state: str) -> None:
    found = problem(composed(**changes))
    assert found.state == state
    assert found.cause


def test_a_deleted_key_has_its_default_again_if_it_has_one() -> None:
    config = composed(train={"steps": 5})
    with open_dict(config):
        del config["train"], config["seed"]
    assert (validate(config).train.steps, validate(config).seed) == (RunConfig().train.steps, 0)
    with open_dict(config):
        del config["model"]
    assert problem(config).state == "model has no value"


@pytest.mark.parametrize(
    "changes",
    [
        {"which": "best"},
        {"which": "1200"},
        {"average": "last 3", "which": "latest"},
        {"average": ["best", 100, "a/b.npz"]},
        {"freeze_until_step": 10, "learning_rate_multiplier": 0.1},
        {"trainable": False},
        {"use_ema": True, "state": ["weights"]},
        {"transpose": {"a": [2, 3, 1, 0], "b": [0]}},
        {"rename": {"a/": "b/"}, "convert": {"*": "torch_dense"}},
    ],
)
def test_scaffolds_that_are_accepted(changes: dict[str, Any]) -> None:
    validate(composed(scaffolds={"a": {**SCAFFOLD, **changes}}))


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"rename": ["a"]}, "rename is a list"),
        ({"variables": {"include": "a"}}, "variables.include is 'a'"),
        ({"variables": {"only": ["a"]}}, "variables.only is not a key of the configuration"),
        ({"which": "-1"}, "which is '-1'"),
        ({"state": []}, "state is []"),
        ({"state": ["random_state"]}, "state is ['random_state']"),
        ({"average": 5}, "average is 5"),
        ({"average": [100, 1.5]}, "average is [100, 1.5]"),
        ({"average": "last 0"}, "average is 'last 0'"),
        ({"learning_rate_multiplier": float("nan")}, "learning_rate_multiplier is nan"),
        ({"transpose": {"a": []}}, "transpose is {'a': []}"),
        ({"vocabulary": {"b": {"new": "y"}}}, "vocabulary.b.old has no value"),
    ],
    ids=str,
)
def test_scaffolds_that_are_refused(changes: dict[str, Any], state: str) -> None:
    found = problem(composed(scaffolds={"a": {**SCAFFOLD, **changes}}))
    assert found.state == f"scaffolds.a.{state}"


def test_a_mapping_of_any_kind_is_validated_over_the_schema() -> None:
    whole = composed()
    plain: Any = OmegaConf.to_container(whole)
    assert validate(plain) == validate(OmegaConf.create(plain)) == validate(whole)
    shorter = {key: plain[key] for key in ("name", "data", "model", "loss")}
    assert validate({**shorter, "train": {"steps": 3}}).train.objective == "validation/loss"
    assert validate(shorter).optimizer == {}
    with pytest.raises(ConfigError, match=r"train\.stepz is not a key"):
        validate({**shorter, "train": {"stepz": 3}})


@pytest.mark.parametrize(
    ("objective", "goal"),
    [
        ("validation/loss", Goal.minimize),
        ("validation/top_k_categorical_accuracy", Goal.maximize),
        ("validation/digit_accuracy", Goal.maximize),
        ("validation/AUC", Goal.maximize),
        ("validation/f1_score", Goal.maximize),
        ("validation/mean_io_u", Goal.maximize),
        ("validation/recall_loss", Goal.minimize),  # The loss of an output called `recall`.
        ("validation/mean_squared_error", Goal.minimize),
        ("validation/mae", Goal.minimize),
        ("validation/perplexity", Goal.minimize),
        ("validation/score", None),
        ("validation/accuracy_error", None),
    ],
)
def test_the_goal_is_inferred_where_the_name_leaves_no_doubt(
    objective: str, goal: Goal | None
) -> None:
    name = objective.removeprefix("validation/")
    config = composed(train={"objective": objective}, metrics={name: TARGET} | {"loss": TARGET})
    if goal is None:
        assert problem(config).choices == ("maximize", "minimize")
    else:
        assert validate(config).train.goal is goal
    config.train.goal = Goal.minimize
    assert validate(config).train.goal is Goal.minimize


def test_what_no_one_has_chosen_of_the_default_optimizer_is_left_out() -> None:
    merged = composed(optimizer=DEFAULT_OPTIMIZER)
    assert validate(merged).optimizer == {}
    merged.optimizer.learning_rate = 0.1
    assert validate(merged).optimizer == {"learning_rate": 0.1}
    merged = composed(optimizer=DEFAULT_OPTIMIZER)
    merged.optimizer._target_ = "keras.optimizers.SGD"
    assert validate(merged).optimizer == {"_target_": "keras.optimizers.SGD"}
    merged.optimizer.learning_rate = 0.5
    assert validate(merged).optimizer["learning_rate"] == 0.5


DECAY = {"_target_": "package.Adam", "learning_rate": {"decay_steps": "${train.steps}"}}


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"graph": TARGET, "train": {"epochs": None}}, ["callbacks is set beside graph"]),
        ({"callbacks": {"x": {"patience": 3}}}, ["callbacks.x has no _target_"]),
        ({"optimizer": DECAY}, ["optimizer.learning_rate.decay_steps is ${train.steps}"]),
    ],
)
def test_epochs_and_callbacks_are_refused_where_they_cannot_be_right(
    changes: dict[str, Any], states: list[str]
) -> None:
    config = composed(**{"callbacks": {"stop": TARGET}, "train": {"epochs": 2}, **changes})
    found = [problem.state for problem in problems(config)]
    assert [state for state in states if state not in found] == []


def test_epochs_and_their_length_count_the_steps() -> None:
    train = {"epochs": 4, "steps_per_epoch": 30}
    config = validate(composed(train=train, optimizer=DECAY))
    assert config.train.steps == config.optimizer["learning_rate"]["decay_steps"] == 120


CONTAINERS = {
    "data": (["a"], "data is a list", "it must be a mapping"),
    "hooks": ([{"a": 1}], "hooks is a list", "it must be a mapping"),
    "train": (["a"], "train is a list", "it must be a mapping with the keys steps, epochs"),
    "sweep": ({"bands": {"a": 1}}, "sweep.bands is a mapping", "it must be a list of "),
    "restoration": ({"verify": ["a"]}, "restoration.verify is a list", "it must be true or false"),
    "session": ({"intra_op_threads": [1]}, "session.intra_op_threads is a list", "it must be a "),
}


@pytest.mark.parametrize("key", CONTAINERS)
def test_a_list_or_mapping_where_none_belongs_is_named_by_its_key(key: str) -> None:
    value, state, cause = CONTAINERS[key]
    with pytest.raises(ConfigError) as caught:
        validate({"name": "x", key: value})
    (problem,) = caught.value.problems
    assert problem.state == state
    assert problem.cause.startswith(cause)
