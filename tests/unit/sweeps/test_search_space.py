from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from runner.errors import ConfigError
from runner.sweeps.search_space import SearchSpace, search_space


def _space(*overrides: str) -> SearchSpace:
    return search_space(OverridesParser.create().parse_overrides(list(overrides)))


DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "interval(0.1, 1)": FloatDistribution(0.1, 1.0),
    "int(interval(1, 5))": IntDistribution(1, 5),
    "tag(log, interval(1e-4, 1e-1))": FloatDistribution(1e-4, 1e-1, log=True),
    "tag(log, int(interval(1, 64)))": IntDistribution(1, 64, log=True),
    "range(1, 5)": IntDistribution(1, 4),
    "range(2, 9, 2)": IntDistribution(2, 8, step=2),
    "range(9, 2, -3)": IntDistribution(3, 9, step=3),
    "range(0, 1, 0.25)": FloatDistribution(0.0, 0.75, step=0.25),
    "tag(log, range(1, 9))": IntDistribution(1, 8, log=True),
    "adam,sgd": CategoricalDistribution(["adam", "sgd"]),
    "choice(1, true, 'a b')": CategoricalDistribution(["1", "True", "a\\ b"]),
    "1,null": CategoricalDistribution(["1", "null"]),
    "[1,2],[3]": CategoricalDistribution(["[1,2]", "[3]"]),
}


@pytest.mark.parametrize("value", DISTRIBUTIONS)
def test_each_form_of_the_grammar(value: str) -> None:
    (dimension,) = _space(f"++a.b={value}").dimensions
    assert (dimension.key, dimension.name) == ("++a.b", "a.b")
    assert dimension.distribution == DISTRIBUTIONS[value]


def test_a_point_has_what_is_fixed_and_what_is_drawn() -> None:
    space = _space(
        "+experiment=tiny", "~scaffolds.lstm", "optimizer=a,b", "+model.units=range(1,3)"
    )
    point = space.point({"optimizer": "b", "model.units": 2})
    assert point.overrides == (
        "+experiment=tiny",
        "~scaffolds.lstm",
        "optimizer=b",
        "+model.units=2",
    )
    assert point.values == {"optimizer": "b", "model.units": "2"}


def test_samples_hold_every_choice_and_every_end() -> None:
    space = _space("a=1,2,3", "b=interval(0.5,1.5)")
    assert [dict(point.values) for point in space.samples()] == [
        {"a": "1", "b": "0.5"},
        {"a": "2", "b": "0.5"},
        {"a": "3", "b": "0.5"},
        {"a": "1", "b": "1.5"},
    ]


MISTAKES = {
    "tag(lgo, interval(1, 2))": "there is no tag 'lgo', only log",
    "tag(log, interval(0.0, 1.0))": "low > 0",
    "interval(2.0, 1.0)": "low=2.0, high=1.0",
    "int(interval(1, 0))": "low=1, high=0",
    "range(1, 9, 0)": "its step is 0",
    "range(1.0, 9.0, 0.0)": "its step is 0",
    "tag(log, range(0.5, 2.0, 0.5))": "exclude each other",
    "tag(foo, choice(1, 2))": "there is no tag 'foo', only log",
    "tag(log, choice(1, 2))": "choices have no logarithm; take an interval",
    "range(3, 1)": "it holds no value",
}


def test_ranges_that_cannot_be_searched_are_reported_together() -> None:
    with pytest.raises(ConfigError) as raised:
        _space(*(f"a{number}={value}" for number, value in enumerate(MISTAKES)))
    for problem, (value, cause) in zip(raised.value.problems, MISTAKES.items(), strict=True):
        assert problem.state.endswith(f"={value} cannot be searched")
        assert cause in problem.cause
