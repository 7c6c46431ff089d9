from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.config.composition import Compose
from runner.errors import ConfigError
from runner.sweeps.points import Point, compose_points, grid, params_as_typed
from tests.tiny.composing import composing


def _parsed(*overrides: str) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def _points(*overrides: str) -> list[Point]:
    return grid(_parsed(*overrides))


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    with composing(tmp_path / "conf"):
        loader = GlobalHydra.instance().config_loader()

        def load(overrides: object) -> DictConfig:
            return loader.load_configuration("config", list(overrides), RunMode.RUN)  # type: ignore[call-overload]

        yield load


def test_every_combination_is_a_point_and_the_last_key_changes_fastest() -> None:
    points = _points("+experiment=tiny", "seed=1,2", "++train.steps=range(3,5)")
    assert [point.values for point in points] == [
        {"seed": "1", "train.steps": "3"},
        {"seed": "1", "train.steps": "4"},
        {"seed": "2", "train.steps": "3"},
        {"seed": "2", "train.steps": "4"},
    ]
    assert points[0].overrides == ("+experiment=tiny", "seed=1", "++train.steps=3")
    assert str(points[0]) == "seed=1 train.steps=3"


def test_a_deletion_and_a_group_in_a_package_stay_as_they_are_written() -> None:
    (first, _) = _points("~scaffolds.lstm", "scaffold@scaffolds.cnn=digits_cnn,random")
    assert first.overrides == ("~scaffolds.lstm", "scaffold@scaffolds.cnn=digits_cnn")
    assert first.values == {"scaffold@scaffolds.cnn": "digits_cnn"}


def test_values_are_as_they_are_and_overrides_as_they_must_be_spelt() -> None:
    (first, second) = _points(r"scaffolds.cnn.checkpoint=experiment\:tiny,'a, b'")
    assert first.overrides == (r"scaffolds.cnn.checkpoint=experiment\:tiny",)
    assert first.values == {"scaffolds.cnn.checkpoint": "experiment:tiny"}
    assert second.overrides == ("scaffolds.cnn.checkpoint='a, b'",)
    assert second.values == {"scaffolds.cnn.checkpoint": "a, b"}


def test_without_several_values_there_is_one_point() -> None:
    (point,) = _points("+experiment=tiny", "seed=1")
    assert (point.values, str(point)) == ({}, "the only one")


def test_params_are_what_the_command_line_does_not_give() -> None:
    params = {
        "seed": [0, 1],
        "scaffold@scaffolds.cnn": "digits_cnn,random",
        "+train.steps": "range(1,3)",
        "run_dir": [None, "a"],
    }
    assert params_as_typed(params, _parsed("+experiment=tiny", "seed=5")) == [
        "scaffold@scaffolds.cnn=digits_cnn,random",
        "+train.steps=range(1,3)",
        "run_dir=null,a",
    ]
    assert params_as_typed({"+a": 1}, _parsed("++a=2")) == []


@pytest.mark.parametrize(
    ("values", "typed"),
    [
        ([[1, 2], [3, 4]], "[1,2],[3,4]"),
        ([{"a": [True, None]}, {}], "{a:[true,null]},{}"),
        ({"a": 1, "b": "c,d"}, "{a:1,b:'c,d'}"),
        (["a,b"], "'a,b'"),
        (["it's", r"^$\w+$", ""], r"'it\'s','^$\w+$',''"),
        (["1e-3", "a b", "[1,2]", "'q'"], "1e-3,a b,[1,2],'q'"),
        ([False, 0.5, float("inf")], "false,0.5,inf"),
    ],
)
def test_what_is_in_a_list_of_params_is_one_value(values: object, typed: str) -> None:
    assert params_as_typed({"+data.note": values}, []) == [f"+data.note={typed}"]
    (override,) = _parsed(f"+data.note={typed}")
    count = len(list(override.sweep_string_iterator())) if override.is_sweep_override() else 1
    assert count == (len(values) if isinstance(values, list) else 1)


def test_a_text_that_calls_a_function_is_left_to_hydra_also_in_a_list() -> None:
    assert params_as_typed({"seed": ["range(1,3)"]}, []) == ["seed=range(1,3)"]


def test_params_need_no_plus_for_a_scaffolds_key_either() -> None:
    typed = params_as_typed({"scaffolds.body.trainable": [True, False]}, [])
    assert typed == ["++scaffolds.body.trainable=true,false"]
    assert params_as_typed({"scaffolds.a.optional": 1}, _parsed("++scaffolds.a.optional=2")) == []


def test_params_without_a_value() -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params has seed: \[\]") as raised:
        params_as_typed({"seed": [], "name": [], "run_dir": ["a"]}, [])
    assert [each.state[-9:] for each in raised.value.problems] == [" seed: []", " name: []"]
    assert params_as_typed({"seed": []}, _parsed("seed=1")) == []


def test_params_are_a_mapping() -> None:
    assert params_as_typed(None, []) == []
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params is 3") as raised:
        params_as_typed(3, [])
    assert "hydra.sweeper.params={seed: [1,2]}" in str(raised.value)


def test_an_interval_is_for_a_search() -> None:
    with pytest.raises(ConfigError, match=r"seed=interval\(1,2\) is an interval") as raised:
        _points("seed=interval(1,2)")
    assert "hydra/sweeper=optuna" in str(raised.value)


@pytest.mark.parametrize("value", ["range(3,1)", "range(1,9,0)", "range(1.0,9.0,0.0)"])
def test_what_holds_no_value(value: str) -> None:
    with pytest.raises(ConfigError, match=r"seed=range.* holds no value"):
        _points("+experiment=tiny", f"seed={value}", "train.steps=1,2")


def test_a_pattern_that_nothing_matches_holds_no_value(tmp_path: Path) -> None:
    with composing(tmp_path / "conf"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        with pytest.raises(ConfigError, match=r"optimizer=glob\(zzz\*\) holds no value"):
            grid(parser.parse_overrides(["+experiment=tiny", "optimizer=glob(zzz*)"]))


@pytest.mark.parametrize(
    ("overrides", "state"),
    [
        (("seed=1,2", "seed=3"), "seed is given 2 times: seed=1,2 seed=3"),
        (("++seed=3", "seed=1,2", "seed=4,5"), "seed is given 3 times: ++seed=3 seed=1,2 seed=4,5"),
    ],
)
def test_a_key_with_values_is_given_once(overrides: Sequence[str], state: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _points("+experiment=tiny", *overrides, "train.steps=1,2")
    assert [each.state for each in raised.value.problems] == [state]


def test_a_key_may_be_given_twice_where_that_sweeps_nothing_and_deleted_before() -> None:
    (point,) = _points("seed=1", "seed=2")
    assert point.overrides == ("seed=1", "seed=2")
    assert len(_points("~data.note", "+data.note=1,2")) == 2


def test_valid_points_have_a_configuration_and_a_fingerprint(compose: Compose) -> None:
    first, second = compose_points(_points("+experiment=tiny", "seed=1,2"), compose)
    assert (first.config.seed, second.config.seed) == (1, 2)
    assert first.fingerprint != second.fingerprint


def _refused(compose: Compose, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        compose_points(_points(*overrides), compose)
    return str(raised.value).splitlines()


def test_every_problem_of_every_point_is_told_once_with_its_place(compose: Compose) -> None:
    lines = _refused(
        compose,
        "+experiment=tiny",
        "optimizer=adam,nosuch",
        "train.steps=0,3",
        "train.objective=validation/accuracy,validation/acuracy",
    )
    states = [line for line in lines if not line.startswith(" ")]
    assert [state.split(" is ")[0] for state in states] == [
        "train.steps",
        "train.objective",
        "optimizer 'nosuch'",
    ]
    assert "(in 2 of 8 trials: optimizer=adam train.steps=0 train.objective=validation/" in lines[1]
    assert any("in 4 of 8 trials: " in line and "; and 1 more)" in line for line in lines)


def test_a_misspelt_key_is_told_once_for_all_its_values(compose: Compose) -> None:
    lines = _refused(
        compose, "+experiment=tiny", "optimizer.learning_rat=0.001,0.003", "train.steps=1,10"
    )
    states = [line for line in lines if not line.startswith(" ")]
    assert states == ["optimizer.learning_rat is not set, so there is nothing to override"]
    assert lines[2].endswith("put a plus before it to add it: +optimizer.learning_rat=...")
    # What depends on the value still says which one.
    lines = _refused(compose, "+experiment=tiny", "optimizer.learning_rate=fast,0.1,slow")
    states = [line for line in lines if not line.startswith(" ")]
    assert states == ["optimizer.learning_rate is 'fast'", "optimizer.learning_rate is 'slow'"]


def test_one_misspelt_key_does_not_hide_another(compose: Compose) -> None:
    lines = _refused(compose, "+experiment=tiny", "traim.steps=3,4", "sesion.x=1", "seed=-1,1")
    assert [line for line in lines if not line.startswith(" ")] == [
        "traim.steps is not a key of the configuration",
        "sesion.x is not a key of the configuration",
        "seed is -1",
    ]


def test_a_problem_of_all_points_names_none(compose: Compose) -> None:
    assert "trials" not in "\n".join(_refused(compose, "+experiment=tiny", "foo=1", "seed=1,2"))


def test_a_source_that_does_not_compose_is_found_too(compose: Compose) -> None:
    lines = _refused(
        compose, "+experiment=warm", "scaffolds.body.checkpoint=experiment:tiny,experiment:tinny"
    )
    assert lines[0] == "scaffolds.body.checkpoint: experiment 'tinny' is not known"
    assert "in 1 of 2 trials" in lines[1]


def test_a_trial_is_checked_with_the_variables_that_it_is_given(compose: Compose) -> None:
    overrides = ["+experiment=tiny", "name=${oc.env:RUNNER_TEST_NAME}"]
    points = [
        Point((*overrides, f"+hydra.job.env_set.RUNNER_TEST_NAME={name}"), {"name": name})
        for name in ("one", "two")
    ]
    assert [each.config.name for each in compose_points(points, compose)] == ["one", "two"]
    assert "RUNNER_TEST_NAME" not in os.environ


def test_mistakes_in_a_trials_cluster_are_told_before_the_first(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = _points("+experiment=tiny", "cluster.workers=1,2")
    with pytest.raises(
        ConfigError, match=r"cluster\.workers is 2, and there is no cluster"
    ) as error:
        compose_points(points, compose)
    assert "in 1 of 2 trials: cluster.workers=2" in error.value.problems[0].cause
    cluster = '{"worker": ["a:1", "b:1"], "ps": ["c:1"]}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {{"type": "chief"}}}}')
    with pytest.raises(ConfigError, match="this process is chief 0 of a cluster, and is to sweep"):
        compose_points(_points("+experiment=tiny"), compose)
