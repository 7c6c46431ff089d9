"""The trials to be: typed, composed and checked before the first one starts."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config.choices import Resume
from runner.config.composition import Compose
from runner.config.schema import PredictConfig, RunConfig, ScaffoldConfig
from runner.errors import ConfigError
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.grid_sweeper import grid
from runner.sweeps.points import (
    ComposedPoint,
    Point,
    check_sources,
    check_targets,
    compose_points,
    mapping_setting,
    params_as_typed,
)
from runner.system.status import Status
from tests.support.configs import tiny


def _parsed(*overrides: str) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def test_params_are_what_the_command_line_does_not_give() -> None:
    params = {
        "seed": [0, 1],
        "scaffold@scaffolds.cnn": "digits_cnn,random",
        "+train.steps": "range(1,3)",
        "run_dir": [None, "a"],
        "scaffolds.body.trainable": [True, False],
    }
    assert params_as_typed(params, _parsed("+experiment=tiny", "seed=5")) == [
        "scaffold@scaffolds.cnn=digits_cnn,random",
        "+train.steps=range(1,3)",
        "run_dir=null,a",
        "++scaffolds.body.trainable=true,false",
    ]
    assert params_as_typed({"+a": 1, "scaffolds.b.c": 1}, _parsed("++a=2", "scaffolds.b.c=2")) == []
    assert params_as_typed({"seed": []}, _parsed("seed=1")) == []
    assert params_as_typed(None, []) == []


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
def test_each_element_of_a_list_of_params_is_one_value(values: object, typed: str) -> None:
    assert params_as_typed({"+data.note": values}, []) == [f"+data.note={typed}"]
    (override,) = _parsed(f"+data.note={typed}")
    count = len(list(override.sweep_string_iterator())) if override.is_sweep_override() else 1
    assert count == (len(values) if isinstance(values, list) else 1)


def test_params_without_values_and_settings_that_are_no_mappings_are_refused() -> None:
    assert params_as_typed({"seed": ["range(1,3)"]}, []) == ["seed=range(1,3)"]
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params has seed: \[\]") as raised:
        params_as_typed({"seed": [], "name": [], "run_dir": ["a"]}, [])
    assert [problem.state[-9:] for problem in raised.value.problems] == [" seed: []", " name: []"]
    assert mapping_setting("params", {1: "a", "b": 2}, "{}") == {"1": "a", "b": 2}
    for value in (3, "validation/loss", ["seed"], ""):
        with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params is ") as raised:
            params_as_typed(value, [])
        (problem,) = raised.value.problems
        assert problem.state.endswith(repr(value))
        assert problem.remedy == "for example 'hydra.sweeper.params={seed: [1,2]}'"


def _points(*overrides: str) -> list[Point]:
    return grid(_parsed(*overrides))


def _refused(compose: Compose, *overrides: str) -> list[str]:
    experiment = () if "+experiment=warm" in overrides else ("+experiment=tiny",)
    with pytest.raises(ConfigError) as raised:
        compose_points(_points(*experiment, *overrides), compose)
    return str(raised.value).splitlines()


def test_every_problem_of_every_point_is_reported_once_with_its_place(compose: Compose) -> None:
    composed = compose(["+experiment=tiny"])

    def quickly(overrides: Sequence[str]) -> DictConfig:
        config = copy.deepcopy(composed)
        for override in overrides[1:]:
            key, _, value = override.partition("=")
            OmegaConf.update(config, key, value)
        return config

    objectives = "train.objective=validation/accuracy,validation/acuracy"
    lines = _refused(quickly, "train.steps=0,3", objectives, "name=a,b")
    states = [line for line in lines if not line.startswith(" ")]
    assert [state.split(" is ")[0] for state in states] == ["train.steps", "train.objective"]
    assert "(in 4 of 8 trials: train.steps=0 train.objective=validation/accuracy" in lines[1]
    assert lines[1].endswith("; and 1 more)")


# Override(s) -> the states of what is reported.
COMPOSED: dict[tuple[str, ...], list[str]] = {
    ("train.stepz=3,4",): ["train.stepz is not a key of the configuration"],
    ("+sesion=1", "seed=-1,-2"): [
        "sesion is not a key of the configuration",
        "seed is -1",
        "seed is -2",
    ],
    ("+experiment=warm", "scaffolds.body.checkpoint=experiment:tiny,experiment:tinny"): [
        "scaffolds.body.checkpoint: experiment 'tinny' is not known"
    ],
    ("cluster.workers=2",): ["cluster.workers is 2 without a cluster"],
    ("cluster=none,local",): ["cluster.local is true in a sweep"],
}


@pytest.mark.parametrize("overrides", COMPOSED, ids=" ".join)
def test_mistakes_are_reported_once_and_none_hides_another(
    compose: Compose, overrides: tuple[str, ...]
) -> None:
    lines = _refused(compose, *overrides)
    assert [line for line in lines if not line.startswith(" ")] == COMPOSED[overrides]
    # What is wrong with all of them names none.
    assert not any("sesion" in line and "trials" in line for line in lines)


def test_a_trial_is_checked_with_the_environment_that_it_is_given(compose: Compose) -> None:
    overrides = ["+experiment=tiny", "name=${oc.env:RUNNER_TEST_NAME}"]
    points = [
        Point((*overrides, f"+hydra.job.env_set.RUNNER_TEST_NAME={name}"), {"name": name})
        for name in ("one", "two")
    ]
    composed = compose_points(points, compose)
    assert [point.config.name for point in composed] == ["one", "two"]
    assert composed[0].fingerprint != composed[1].fingerprint
    assert "RUNNER_TEST_NAME" not in os.environ


def test_a_sweep_over_the_params_of_a_model_fn(compose: Compose) -> None:
    points = _points("+experiment=program", "params.units=2,4")
    composed = compose_points(points, compose)
    assert [point.config.params["units"] for point in composed] == [2, 4]
    assert composed[0].fingerprint != composed[1].fingerprint
    check_targets(composed)
    with pytest.raises(ConfigError, match=r"params\.unit is not set"):
        compose_points(_points("+experiment=program", "params.unit=2"), compose)


def _composed(*configs: RunConfig) -> list[ComposedPoint]:
    return [
        ComposedPoint(Point((), {"n": str(number)}), config, f"f{number}")
        for number, config in enumerate(configs)
    ]


NET = "tests.samples.experiment.Net"


def test_mistakes_in_targets_are_reported_with_their_trials() -> None:
    model = {"_target_": NET, "jit_compile": False, "dtype_policy": "float32"}
    hooks = {"mine": {"_target_": "tests.samples.hooks.Slow", "seconds": "${graph:loss}"}}
    adam = {"_target_": "tensorflow.compat.v1.train.AdamOptimzer", "learning_rate": 0.1}
    trials: list[dict[str, Any]] = [
        {"model": {**model, "units": 3}},
        {"model": {**model, "unts": 3}},
        {"model": {**model, "unts": 4}, "hooks": hooks},
        {"optimizer": adam},
        {"callbacks": {"stop": {"_target_": "keras.callbacks.EarlyStopping", "patienc": 2}}},
        {"predict": PredictConfig(data={"_target_": "tests.samples.experiment.Blobs", "sed": 1})},
        *({"model": {"_target_": NET, "units": units}} for units in ("x", 0.5)),
    ]
    with pytest.raises(ConfigError) as raised:
        check_targets(_composed(*(tiny(**trial) for trial in trials)))
    causes = {problem.state: problem.cause for problem in raised.value.problems}
    misspelt = "optimizer._target_ is 'tensorflow.compat.v1.train.AdamOptimzer'"
    assert causes == {
        f"model.unts is not an argument of {NET}": (
            "it is misspelt, or belongs elsewhere (in 2 of 8 trials: n=1; n=2)"
        ),
        "hooks.mine.marker has no value": (
            "tests.samples.hooks.Slow needs it (in 1 of 8 trials: n=2)"
        ),
        misspelt: causes[misspelt],
        "callbacks.stop.patienc is not an argument of keras.callbacks.EarlyStopping": (
            "it is misspelt, or belongs elsewhere (in 1 of 8 trials: n=4)"
        ),
        "predict.data.sed is not an argument of tests.samples.experiment.Blobs": (
            "it is misspelt, or belongs elsewhere (in 1 of 8 trials: n=5)"
        ),
    }
    assert "units" in raised.value.problems[0].choices


def _config(checkpoint: str | None, **scaffold: Any) -> RunConfig:
    return tiny(
        run_dir="runs/tiny", scaffolds={"body": ScaffoldConfig(checkpoint=checkpoint, **scaffold)}
    )


def _missing(*configs: RunConfig) -> dict[str, str]:
    """Returns state -> cause of what is wrong with sources, if anything is."""
    try:
        check_sources(_composed(*configs))
    except ConfigError as error:
        return {problem.state: problem.cause for problem in error.problems}
    return {}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sources_that_do_not_exist_are_reported_with_their_trials(folder: Path) -> None:
    np.savez(folder / "good.npz", kernel=np.zeros(2))
    (folder / "page.h5").write_text("<html>not found</html>")
    (folder / "empty").mkdir()
    causes = _missing(
        _config("good.npz"),
        _config("nosuch/model"),
        _config("page.h5"),
        _config("empty"),
        _config("nosuch/model", trainable=False),
        _config("good.npz", average=["other.npz"]),
    )
    begin = "scaffolds.body.checkpoint:"
    assert causes == {
        f"{begin} there is no checkpoint at nosuch/model": (
            "neither a directory nor a prefix (in 2 of 6 trials: n=1; n=4)"
        ),
        f"{begin} page.h5 is not a checkpoint of a known format": (
            "it is HTML or XML, as a failed download leaves it (in 1 of 6 trials: n=2)"
        ),
        f"{begin} the directory empty holds no checkpoint": "it is empty (in 1 of 6 trials: n=3)",
        f"{begin} there is no checkpoint at other.npz": (
            "neither a directory nor a prefix (in 1 of 6 trials: n=5)"
        ),
    }


# Configurations of which the last one's source does not exist -> whether that is reported.
SOURCES: dict[str, tuple[list[RunConfig], bool]] = {
    "none": ([_config(None)], False),
    "optional": ([_config("nosuch", optional=True)], False),
    "trained": ([_config("experiment:tiny")], False),
    "a registry": ([_config("models:/nosuch/1")], False),
    "a bucket": ([_config("gs://nosuch/model")], False),
    "a registry's average": ([_config("nosuch", average=["runs:/nosuch/model"])], False),
    "of a trial": ([_config(None), _config("runs/tiny/001", which="best")], False),
    "of a source": ([_config("experiment:digits"), _config("runs/digits/001")], False),
    "of another run": ([_config(None), _config("runs/digits/001")], True),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", SOURCES)
def test_sources_that_may_come_to_exist_are_not_looked_for(name: str) -> None:
    configs, reported = SOURCES[name]
    assert bool(_missing(*configs)) is reported


def test_a_run_that_has_begun_does_not_read_its_sources_again(folder: Path) -> None:
    begun = RunDirectory(folder / "runs" / "tiny" / "001")
    begun.path.mkdir(parents=True)
    begun.write(RunRecord("tiny", "f0", Status.FINISHED, {}))
    config = _config("nosuch")
    assert _missing(config) == {}
    assert "(in 1 of 2 trials: n=1)" in next(iter(_missing(config, config).values()))
    config.resume = Resume.never
    assert len(_missing(config)) == 1
