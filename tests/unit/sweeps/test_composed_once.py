from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.sweeps import points
from runner.sweeps.points import ComposedOnce, Point, compose_points
from tests.tiny.composing import composing

TINY = ("+experiment=tiny",)


class Counting:
    """A config loader that counts what it composes."""

    def __init__(self) -> None:
        self.loader = GlobalHydra.instance().config_loader()
        self.composed: list[tuple[str, ...]] = []

    def load_sweep_config(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        self.composed.append(tuple(overrides))
        return self.loader.load_sweep_config(master, overrides)


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    with composing(tmp_path / "conf"):
        yield Counting()


@pytest.fixture
def master(counting: Counting) -> DictConfig:
    return counting.loader.load_configuration("config", ["seed=1,2"], RunMode.MULTIRUN)


@pytest.fixture
def configs(counting: Counting) -> ComposedOnce:
    return ComposedOnce(counting)  # type: ignore[arg-type]


def _check(configs: ComposedOnce, master: DictConfig, *overrides: Sequence[str]) -> None:
    points = [Point(tuple(each), {}) for each in overrides]
    compose_points(points, lambda each: configs.compose(master, each))


def _place(master: DictConfig) -> None:
    with open_dict(master):
        master.hydra.sweep.dir = "/sweeps/001"
        master.hydra.overrides.hydra.append("hydra.sweep.dir='/sweeps/001'")


def test_a_trial_gets_what_its_check_composed_as_if_composed_anew(
    configs: ComposedOnce, counting: Counting, master: DictConfig
) -> None:
    overrides = (*TINY, "seed=2")
    _check(configs, master, overrides)
    _place(master)
    given = configs.load_sweep_config(master, overrides)
    assert counting.composed == [overrides]
    anew = counting.loader.load_sweep_config(master, list(overrides))
    assert OmegaConf.to_container(given) == OmegaConf.to_container(anew)
    assert given.hydra.sweep.dir == "/sweeps/001"
    for name in ("hydra", "hydra.job", "train"):
        nodes = [OmegaConf.select(config, name) for config in (given, anew)]
        assert (
            len({(OmegaConf.is_struct(each), OmegaConf.is_readonly(each)) for each in nodes}) == 1
        )


def test_another_attempt_is_composed_anew(
    configs: ComposedOnce, counting: Counting, master: DictConfig
) -> None:
    overrides = (*TINY, "seed=2")
    _check(configs, master, overrides)
    first, second = (configs.load_sweep_config(master, overrides) for _ in range(2))
    assert first == second
    assert counting.composed == [overrides, overrides]


def test_what_a_trial_overrides_of_hydra_is_left_to_hydra(
    configs: ComposedOnce, counting: Counting, master: DictConfig
) -> None:
    overrides = (*TINY, "hydra.job.chdir=false")
    _check(configs, master, overrides)
    _place(master)
    assert configs.load_sweep_config(master, overrides).hydra.overrides.hydra[-2:] == [
        "hydra.sweep.dir='/sweeps/001'",
        "hydra.job.chdir=false",
    ]
    assert len(counting.composed) == 2


def test_only_so_many_are_kept(
    configs: ComposedOnce,
    counting: Counting,
    master: DictConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(points, "_KEPT", 1)
    overrides = [(*TINY, f"seed={seed}") for seed in (1, 2)]
    _check(configs, master, *overrides)
    for each in overrides:
        configs.load_sweep_config(master, each)
    assert counting.composed == [*overrides, overrides[0]]


def test_all_else_is_asked_of_hydras_loader(configs: ComposedOnce, counting: Counting) -> None:
    assert configs.composed is counting.composed
