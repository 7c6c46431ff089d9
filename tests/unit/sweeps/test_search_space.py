from __future__ import annotations

from typing import Any

import optuna
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
from tests.tiny.spaces import conditional


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


def test_a_point_has_what_is_fixed_what_is_drawn_and_more() -> None:
    space = _space("+experiment=tiny", "~scaffolds.lstm", "optimizer=adam,sgd", "seed=range(1,3)")
    point = space.point({"optimizer": "sgd", "seed": 2, "drawn": 0.5}, {"+model.units": 3})
    assert point.overrides == (
        "+experiment=tiny",
        "~scaffolds.lstm",
        "optimizer=sgd",
        "seed=2",
        "drawn=0.5",
        "+model.units=3",
    )
    assert point.values == {"optimizer": "sgd", "seed": "2", "drawn": "0.5", "model.units": "3"}


VALUES: list[Any] = [
    *(None, True, 3, -0.5, 1e-7, 1e22, "adam", "a/b.c-d", "null", "True", "nan", "1", "1e-3", ""),
    *("a, b", "a b", "it's", 'the "one"', "[1,2]", "back\\slash\\", "-x", "a:b", "x=y", "é", "$x"),
    [1, "a, b", None],
    {"a": [1.5, "2"], "b": {"c": None}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_of_a_custom_space_are_those_that_hydra_reads(value: Any) -> None:
    point = SearchSpace((), ()).point({"data.note": value})
    (override,) = OverridesParser.create().parse_overrides(list(point.overrides))
    assert not override.is_sweep_override()
    parsed = override.value()
    assert (type(parsed), parsed) == (type(value), value)
    assert SearchSpace((), ()).point({}, {"data.note": value}) == point


def test_values_of_a_custom_space_are_shown_as_written_and_keys_forced_as_if_typed() -> None:
    key = "scaffolds.body.trainable"
    values = {"+a": None, "b": "x, y", "c": True, "d": [1, "x"], key: False}
    point = SearchSpace((), ()).point(values)
    assert point.values == {"a": "null", "b": "x, y", "c": "true", "d": "[1,x]", key: "false"}
    assert (point.overrides[0], point.overrides[-1]) == ("+a=null", f"++{key}=false")


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


def _custom(name: str, **arguments: Any) -> SearchSpace:
    return search_space([], {"_target_": f"tests.tiny.spaces.{name}", **arguments})


def test_a_custom_space_draws_derives_and_takes_arguments() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [_custom("conditional", most=4).drawn(study.ask()) for _ in range(8)]
    for trial, point in zip(study.trials, points, strict=True):
        units = trial.params["+model.units"]
        assert point.values["model.units"] == str(units)
        derived = str(0.1 / units) if trial.params["optimizer"] == "sgd" else None
        assert point.values.get("optimizer.learning_rate") == derived
    assert {point.values["optimizer"] for point in points} == {"adam", "sgd"}
    point = _custom("conditional", most=1).drawn(study.ask())
    assert point.values["model.units"] == "1"
    assert search_space([]).custom is None
    assert SearchSpace(("a=1",), (), conditional).drawn(study.ask()).overrides[0] == "a=1"


def test_what_a_custom_space_does_wrong_is_reported() -> None:
    trial = optuna.create_study().ask()
    states = {"raising": "ZeroDivisionError", "returning": "TypeError: it returns 0.5"}
    for name, state in states.items():
        words = rf"custom_search_space: tests.tiny.spaces.{name} fails\n.*{state}"
        with pytest.raises(ConfigError, match=words):
            _custom(name).drawn(trial)
    for name, arguments, key in (("conditional", {"mots": 1}, "mots"), ("nosuch", {}, "_target_")):
        with pytest.raises(ConfigError, match=rf"hydra\.sweeper\.custom_search_space\.{key}"):
            _custom(name, **arguments)
