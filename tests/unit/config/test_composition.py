"""Experiments are composed beside the one that runs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore

from runner.config.composition import (
    compose_experiment,
    experiment_names,
    register,
    reporting_composition,
    with_plus_plus,
)
from runner.errors import ConfigError
from tests.support.composing import CONF, composing


def test_an_experiment_is_composed_with_overrides_of_its_own_and_anew_each_time(
    tmp_path: Path,
) -> None:
    with composing(tmp_path / "conf"):
        config = compose_experiment("digits_cnn", ["train.steps=3", "optimizer=sgd"])
        assert (config.name, config.train.steps) == ("digits_cnn", 3)
        assert config.optimizer._target_.endswith("SGD")
        config.name = "changed"
        again = compose_experiment("digits_cnn", ["train.steps=3", "optimizer=sgd"])
        assert again.name == "digits_cnn"
        assert compose_experiment("digits_cnn", ["train.steps=4"]).train.steps == 4


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_predict_data_is_an_override(sign: str, tmp_path: Path) -> None:
    with composing(tmp_path / "conf"):
        data = {"_target_": "mine.noise", "size": 3}
        config = compose_experiment(
            "digits_cnn", [f"{sign}predict.data={{_target_: mine.noise, size: 3}}"]
        )
        assert config.predict.data == data


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("scaffolds.cnn.trainable=false", "++scaffolds.cnn.trainable=false"),
        ("scaffolds.0.trainable=false", "scaffolds.0.trainable=false"),
        ("restoration.expect.cnn=3", "++restoration.expect.cnn=3"),
        ("hydra.sweeper.params={seed: [1, 2]}", "++hydra.sweeper.params={seed: [1, 2]}"),
        ("hydra.sweeper.objectives={a: minimize}", "++hydra.sweeper.objectives={a: minimize}"),
        ("hydra.sweeper.n_trials=3", "hydra.sweeper.n_trials=3"),
        ("devices.batch=per_device", "++devices.batch=per_device"),
        ("devices=2", "++devices.count=2"),
        ("devices=[gpu:1,gpu:3]", "++devices.count=[gpu:1,gpu:3]"),
        ("devices={count: 2}", "devices={count: 2}"),
        ("devices=null", "devices=null"),
        ("+hydra.sweeper.params={seed: 1}", "+hydra.sweeper.params={seed: 1}"),
    ],
)
def test_what_the_yaml_need_not_hold(typed: str, expected: str) -> None:
    assert with_plus_plus(typed) == expected


def test_another_search_path_holds_other_experiments(tmp_path: Path) -> None:
    assert experiment_names() == []
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").touch()
    for folder, names in (
        (CONF, ["digits_cnn", "lstm_cnn", "short_sequences"]),
        (tmp_path, ["mine"]),
    ):
        with initialize_config_dir(str(folder), version_base="1.3"):
            assert experiment_names() == names


def test_hydra_copies_only_the_schemas_that_a_composition_loads() -> None:
    register()
    store = ConfigStore.instance()
    assert copy.deepcopy(store) is store
    assert store.load("runner_config.yaml").node is not store.load("runner_config.yaml").node


def test_a_folder_of_configs_that_may_not_be_read_is_named() -> None:
    denied = PermissionError(13, "Permission denied", "conf/experiment")
    with (
        pytest.raises(ConfigError, match="Permission denied: 'conf/experiment'"),
        reporting_composition(),
    ):
        raise denied


@pytest.mark.parametrize("content", ["defaults: [/experiment/odd, _self_]", "tags: &a {b: *a}"])
def test_a_configuration_without_an_end_is_a_problem(content: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "odd.yaml").write_text(f"# @package _global_\n{content}\n")
    register()
    shown = f"hydra.searchpath=[file://{tmp_path}]"
    with (
        initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises(ConfigError, match="the configuration has no end"),
        reporting_composition(),
    ):
        compose("config", [shown, "+experiment=odd"])


def test_a_list_in_a_file_below_a_search_path_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "odd.yaml").write_text("# @package _global_\nhooks: [1]\n")
    register()
    with (
        initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises(ConfigError, match="a key is a list"),
        reporting_composition(),
    ):
        compose("config", [f"hydra.searchpath=[file://{tmp_path}]", "+experiment=odd"])
