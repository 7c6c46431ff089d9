"""The schema: what its defaults are and what it accepts."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, ValidationError

from runner.config import choices
from runner.config.choices import Goal, Mode
from runner.config.schema import RunConfig, ScaffoldConfig, register

ENUMS = [
    each
    for _, each in inspect.getmembers(choices, inspect.isclass)
    if issubclass(each, Enum) and each is not Enum
]


def registered() -> DictConfig:
    """The schema as Hydra finds it."""
    register()
    schema = ConfigStore.instance().load("runner_config.yaml").node
    assert isinstance(schema, DictConfig)
    return schema


@pytest.mark.parametrize("enum", ENUMS)
def test_enums_are_spelt_as_they_are_typed(enum: type[Enum]) -> None:
    assert len(enum) >= 2
    assert [each.name for each in enum] == [each.value for each in enum]


def test_only_what_an_experiment_must_say_has_no_default() -> None:
    assert OmegaConf.missing_keys(OmegaConf.structured(RunConfig(name="x"))) == {
        "data",
        "model",
        "loss",
        "optimizer",
    }


def test_the_run_directory_follows_the_name() -> None:
    assert OmegaConf.merge(registered(), {"name": "digits"}).run_dir == "runs/digits"


def test_registering_again_changes_nothing() -> None:
    assert registered() == registered()


@pytest.mark.parametrize(
    "scaffolds",
    [{"cnn": {"checkpoint": "a"}}, [{"name": "cnn", "checkpoint": "a"}], {}, None],
    ids=["mapping", "list", "empty", "null"],
)
def test_scaffolds_are_a_mapping_or_a_list(scaffolds: Any) -> None:
    assert OmegaConf.merge(registered(), {"scaffolds": scaffolds}).scaffolds == scaffolds


def test_enums_are_read_by_name() -> None:
    merged = OmegaConf.merge(registered(), {"mode": "plan", "train": {"goal": "maximize"}})
    assert (merged.mode, merged.train.goal) == (Mode.plan, Goal.maximize)


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigKeyError, match="Key 'stepz' not in 'TrainConfig'"):
        OmegaConf.merge(registered(), {"train": {"stepz": 1}})


def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="could not be converted to Integer"):
        OmegaConf.merge(registered(), {"train": {"steps": "many"}})


def test_scaffolds_do_not_share_their_defaults() -> None:
    first, second = ScaffoldConfig(), ScaffoldConfig()
    first.rename["a"] = "b"
    assert second.rename == {}
