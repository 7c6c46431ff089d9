from __future__ import annotations

from types import ModuleType
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.search_space import Dimension, SearchSpace, sampler, try_sampler
from runner.sweeps.summary import Objective

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)
SPACE = SearchSpace(
    (),
    (
        Dimension("seed", "seed", IntDistribution(1, 8)),
        Dimension("rate", "rate", FloatDistribution(0.0, 1.0)),
    ),
)
CMAES = {"_target_": "optuna.samplers.CmaEsSampler"}

lazy = ModuleType("no_such_package.part")


class Lazy(optuna.samplers.RandomSampler):
    """Would import a module when it draws."""


def _try(*objectives: Objective, **node: Any) -> None:
    try_sampler({"sampler": node}, SPACE, None, objectives or [LOSS])


def test_a_seed_is_another_one_when_a_study_goes_on() -> None:
    def first(drawn: int, **sampler_node: Any) -> float:
        study = optuna.create_study(sampler=sampler({"sampler": sampler_node}, drawn))
        return study.ask().suggest_float("x", 0.0, 1.0)

    random = {"_target_": "optuna.samplers.RandomSampler", "seed": 1}
    assert first(0, **random) == first(0, **random) != first(3, **random)
    # That one keeps its place in the study.
    space = {"x": [number / 50 for number in range(50)]}
    grid = {"_target_": "optuna.samplers.GridSampler", "search_space": space, "seed": 1}
    assert first(0, **grid) == first(3, **grid)


def test_a_module_that_is_imported_only_when_trials_are_drawn_is_missed_before() -> None:
    target = f"{__name__}.Lazy"
    with pytest.raises(ConfigError, match=f"hydra.sweeper.sampler is {target}") as raised:
        sampler({"sampler": {"_target_": target}})
    assert "it needs no_such_package, which is not installed" in str(raised.value)
    assert "pip install no_such_package" in str(raised.value)


@pytest.mark.parametrize(
    "target", ["CmaEsSampler", "TPESampler", "RandomSampler", "QMCSampler", "NSGAIISampler"]
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_draw_with_what_the_extra_installs(target: str) -> None:
    _try(_target_=f"optuna.samplers.{target}")


def test_a_grid_of_one_point_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    _try(_target_="optuna.samplers.GridSampler", search_space={"seed": [1], "rate": [0.5]})
    assert caplog.messages == []


def test_a_sampler_that_cannot_draw_is_found_before() -> None:
    with pytest.raises(ConfigError, match="GridSampler, which draws no trial") as raised:
        _try(_target_="optuna.samplers.GridSampler", search_space={"seed": [1, 2]})
    assert "The parameter name, rate, is not found in the given grid" in str(raised.value)
    with pytest.raises(ConfigError, match="multi-objective"):
        _try(LOSS, ACCURACY, **CMAES)


def test_a_mistake_that_a_custom_space_makes_with_this_sampler_is_told() -> None:
    def custom(trial: optuna.Trial) -> None:
        raise ConfigError

    with pytest.raises(ConfigError):
        try_sampler({"sampler": CMAES}, SPACE, custom, [LOSS])
