from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.config.composition import compose_all, problems_of_command
from tests.tiny.composing import composing


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[ConfigLoader]:
    with composing(tmp_path / "conf"):
        yield GlobalHydra.instance().config_loader()


def _all(loader: ConfigLoader, *overrides: str) -> tuple[DictConfig | None, list[str]]:
    def compose(given: Sequence[str]) -> DictConfig:
        return loader.load_configuration("config", list(given), RunMode.RUN)

    config, problems = compose_all(compose, overrides)
    return config, [each.state for each in problems]


def test_what_composes_has_no_problem(loader: ConfigLoader) -> None:
    config, states = _all(loader, "+experiment=tiny", "train.steps=3")
    assert config is not None
    assert (config.train.steps, states) == (3, [])


def test_every_key_and_value_that_does_not_fit_is_found(loader: ConfigLoader) -> None:
    mistakes = ["traim.steps=3", "seed=x", "+train.steps=5", "~nosuch", "sesion.x=1"]
    config, states = _all(loader, "+experiment=tiny", *mistakes)
    assert config is not None
    assert (config.name, config.seed) == ("tiny", 0)
    assert states == [
        "traim.steps is not a key of the configuration",
        "seed has a value that does not fit",
        "+train.steps is set already, so it cannot be added",
        "~nosuch deletes nothing",
        "sesion.x is not a key of the configuration",
    ]


def test_a_mistake_that_is_made_twice_is_told_once(loader: ConfigLoader) -> None:
    _, states = _all(loader, "+experiment=tiny", "foo=1", "foo=1", "foo=2")
    assert states == ["foo is not a key of the configuration"]


def test_after_a_wrong_group_only_what_does_not_depend_on_it_is_told(
    loader: ConfigLoader,
) -> None:
    mistakes = ["optimizer=adamm", "model.units=3", "traim.steps=3", "train.steps=x"]
    config, states = _all(loader, "+experiment=tinny", *mistakes)
    assert config is None
    assert sorted(states) == [
        "experiment 'tinny' is not known",
        "optimizer 'adamm' is not known",
        "traim.steps is not a key of the configuration",
        "train.steps has a value that does not fit",
    ]
    # It may be meant to choose a group.
    _, states = _all(loader, "+experiment=tiny", "optimizr=momentum", "optimizer.momentum=0.9")
    assert states == ["optimizr is not a key of the configuration"]


def test_what_cannot_be_read_comes_first(loader: ConfigLoader) -> None:
    config, states = _all(loader, "+experiment=tiny", "foo", "traim.steps=3", "a=[1")
    assert (config, states) == (None, ["'foo' is not an override", "'a=[1' is not an override"])


def test_a_mistake_in_no_override_is_told_alone(loader: ConfigLoader, tmp_path: Path) -> None:
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nname: mine\ntrain: {stepz: 3}\n")
    config, states = _all(loader, "+experiment=mine", "model.units=3")
    assert (config, states) == (None, ["train.stepz is not a key of the configuration"])


def test_of_a_sweep_the_first_values_are_looked_at(loader: ConfigLoader) -> None:
    overrides = [
        "+experiment=tiny,warm",
        "sed=1,2",
        "optimizer.learning_rate=interval(0.1,1)",
        "hydra.sweeper.n_trails=3",
        "train.steps=0",
    ]
    with pytest.raises(ConfigCompositionException) as raised:
        loader.load_configuration("config", overrides, RunMode.MULTIRUN)
    found = problems_of_command(loader, "config", overrides, RunMode.MULTIRUN, raised.value)
    assert [each.state for each in found] == [
        "hydra.sweeper.n_trails is not a key of Hydra",
        "sed is not a key of the configuration",
        "train.steps is 0",
    ]


def test_of_a_single_run_all_is_told_with_its_validation(loader: ConfigLoader) -> None:
    overrides = ["seed=1,2", "traim.steps=3"]
    with pytest.raises(ConfigCompositionException) as raised:
        loader.load_configuration("config", overrides, RunMode.RUN)
    found = problems_of_command(loader, "config", overrides, RunMode.RUN, raised.value)
    assert [each.state for each in found] == [
        "seed=1,2 holds several values",
        "traim.steps is not a key of the configuration",
        "no experiment is named",
    ]
