"""Every error of Hydra and OmegaConf becomes one problem that a newcomer can act on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, SearchPathException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import lookup
from runner.config.hydra_errors import bad_value, explain, unknown_key, unresolved
from runner.config.schema import TrainConfig, register
from runner.errors import Problem

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests" / "tiny" / "conf"

Explained = Callable[..., Problem]


@pytest.fixture
def explained(tmp_path: Path) -> Explained:
    """Composes overrides, with `mine` as the text of experiment/mine.yaml, and explains."""
    (tmp_path / "experiment").mkdir()

    def compose_wrongly(*overrides: str, mine: str = "") -> Problem:
        (tmp_path / "experiment" / "mine.yaml").write_text(mine, encoding="utf-8")
        register()
        paths = f"hydra.searchpath=['file://{TINY}','file://{tmp_path}']"
        with (
            initialize_config_dir(str(ROOT / "conf"), version_base="1.3"),
            pytest.raises(
                (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
            ) as e,
        ):
            compose("config", overrides=[paths, *overrides])
        (problem,) = explain(e.value).problems
        return problem

    return compose_wrongly


OVERRIDES = {
    "trian.steps=3": ("trian.steps is not a key of the configuration", "", "train.steps"),
    "train.stepz=3": ("train.stepz is not a key of the configuration", "", "train.steps"),
    "steps=3": ("steps is not a key of the configuration", "", "train.steps"),
    "traking=none": ("traking is not a key of the configuration", "", "tracking"),
    "foo=1": ("foo is not a key of the configuration", "arguments of your own classes", "name"),
    "hydra.foo=1": ("hydra.foo is not a key of Hydra", "--hydra-help", None),
    "train.steps=abc": ("train.steps has a value that does not fit", "give a whole number", None),
    "train.steps=null": ("train.steps has a value that does not fit", "give a whole number", None),
    "train=5": ("train has a value that does not fit", "with the keys steps, log_every", None),
    "mode=plann": ("mode has a value that does not fit", "", "plan"),
    "train.goal=max": ("train.goal has a value that does not fit", "", "maximize"),
    "hooks=3": ("hooks has a value that does not fit", "give a mapping", None),
    "+experiment=warm": ("two experiments are named", "-m +experiment=a,b", None),
    "+experiment": ("'+experiment' is not an override", "key=value to change", None),
    "a=[1": ("'a=[1' is not an override", "quote a value", None),
    "optimizer=adamm": ("optimizer 'adamm' is not known", "--config-dir", "adam"),
    "+optimizer=sgd": ("optimizer is chosen twice", "leave out the plus", None),
    "optimizer=5": ("a config group is set to what is not", "optimizer=sgd", None),
    "model.units=3": ("model.units is not set, so there is nothing", "+model.units=3", None),
    "+train.steps=4": ("+train.steps is set already", "leave out the plus: train.steps=4", None),
    "~train.foo": ("~train.foo deletes nothing", "--cfg job", None),
    "~train.steps": ("~train.steps cannot be deleted", "train.steps=...", None),
    "~model": ("~model cannot be deleted", "model=...", None),
    "seed=1,2": ("seed=1,2 holds several values", "-m", None),
    "seed=range(1,3)": ("seed=range(1,3) holds several values", "-m", None),
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides(explained: Explained, override: str) -> None:
    state, remedy, choice = OVERRIDES[override]
    problem = explained("+experiment=tiny", override)
    assert problem.state.startswith(state)
    assert remedy in problem.remedy
    assert choice is None or problem.choices[0] == choice


def test_an_experiment_without_its_plus(explained: Explained) -> None:
    problem = explained("experiment=tiny")
    assert problem.state == "experiment is not chosen by default, so it cannot be overridden"
    assert problem.remedy == "put a plus before it: +experiment=tiny"


def test_choices_name_every_valid_value(explained: Explained) -> None:
    assert explained("+experiment=tiny", "mode=plann").choices == (
        "plan",
        "train",
        "evaluate",
        "export",
    )
    every_key_of_train = {f"train.{each}" for each in lookup.keys(TrainConfig)}
    assert set(explained("+experiment=tiny", "train.stepz=1").choices) == every_key_of_train
    assert set(explained("+experiment=tinny").choices) >= {"tiny", "warm", "lstm_cnn"}


SCAFFOLDS = {
    "scaffolds.body.chekpoint=x": ("scaffolds.body.chekpoint is not a key of a scaffold", ""),
    "scaffolds.body.trainable=false": (
        "scaffolds.body.trainable is not set",
        "+scaffolds.body.trainable=false",
    ),
    "scaffolds=[{name: body}]": (
        "scaffolds cannot change from a mapping to a list",
        "delete it: ~scaffolds",
    ),
}


@pytest.mark.parametrize("override", SCAFFOLDS)
def test_overrides_of_scaffolds(explained: Explained, override: str) -> None:
    state, remedy = SCAFFOLDS[override]
    problem = explained("+experiment=warm", override)
    assert problem.state.startswith(state)
    assert remedy in problem.remedy


FILES = {
    "train: {stepz: 3}": ("train.stepz is not a key", "experiment/mine.yaml sets it"),
    "trian: {steps: 3}": ("trian is not a key", "experiment/mine.yaml sets it"),
    "train: {steps: abc}": ("train.steps has a value", "'abc' of type 'str'"),
    "train: 3": ("train has a value that does not fit", "(in experiment/mine.yaml)"),
    "mode: plann": ("mode has a value that does not fit", "(in experiment/mine.yaml)"),
    "model: 5": ("model has a value that does not fit", "(in experiment/mine.yaml)"),
    "metrics: null": ("metrics has a value that does not fit", "(in experiment/mine.yaml)"),
    "defaults: [nosuch]": ("experiment 'nosuch' is not known", "experiment/mine.yaml asks"),
    "defaults: [{/data: nosuch}]": ("data 'nosuch' is not known", "experiment/mine.yaml asks"),
    "defaults: [{override /optimizr: sgd}]": ("optimizr is not in the defaults list", ""),
}


@pytest.mark.parametrize("content", FILES)
def test_experiment_files(explained: Explained, content: str) -> None:
    state, cause = FILES[content]
    problem = explained("+experiment=mine", mine=f"# @package _global_\nname: mine\n{content}\n")
    assert problem.state.startswith(state)
    assert cause in problem.cause


@pytest.mark.parametrize("content", ["name: mine\n", "", "- a\n"])
def test_an_experiment_file_without_its_first_line(explained: Explained, content: str) -> None:
    problem = explained("+experiment=mine", mine=content)
    assert problem.state == "experiment/mine.yaml is composed below the key 'experiment'"
    assert problem.remedy == "make `# @package _global_` its first line"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("train:\n  steps: 3\n log_every: 5\n", "mine.yaml, line 3, column 2 is not valid YAML"),
        ("train: {steps: 3, steps: 4}\n", "mine.yaml, line 1, column 19 is not valid YAML"),
        ("train: [\n", "mine.yaml, line 2, column 1 is not valid YAML"),
    ],
)
def test_bad_yaml(explained: Explained, content: str, where: str) -> None:
    problem = explained("+experiment=mine", mine=content)
    assert problem.state.endswith(where)
    assert problem.cause
    assert "quotes" in problem.remedy


def test_yaml_that_cannot_even_be_read(explained: Explained) -> None:
    problem = explained("+experiment=mine", mine="\x01\n")
    assert problem.state == "a config file is not valid YAML"
    assert "mine.yaml" in problem.cause


def test_a_missing_config_directory(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    wrong = tmp_path / "comf"
    error = SearchPathException(f"Additional config directory '{wrong}' not found")
    (problem,) = explain(error).problems
    assert problem.state == f"--config-dir {wrong} is not a directory"
    assert problem.cause == "nothing is there"
    assert problem.choices == (str(tmp_path / "conf"),)


def test_a_file_is_not_a_config_directory(tmp_path: Path) -> None:
    (tmp_path / "conf").touch()
    error = SearchPathException(f"Additional config directory '{tmp_path / 'conf'}' not found")
    assert explain(error).problems[0].cause == "it is a file"


@pytest.mark.parametrize(
    ("error", "state", "cause"),
    [
        (ValueError("The --resolve flag\nneeds --cfg"), "The --resolve flag", "needs --cfg"),
        (SearchPathException("something else"), "something else", ""),
        (HydraException(), "HydraException", ""),
    ],
)
def test_any_other_error_keeps_its_words(error: Exception, state: str, cause: str) -> None:
    assert explain(error).problems == (Problem(state, cause),)


@pytest.mark.parametrize(
    ("value", "cause", "choices"),
    [
        ("${data.modulu}", "Interpolation key 'data.modulu' not found", ("data.modulus",)),
        ("${xyz}", "Interpolation key 'xyz' not found", ()),
        ("${nosuch:1}", "Unsupported interpolation type nosuch", ()),
    ],
)
def test_interpolations(value: str, cause: str, choices: tuple[str, ...]) -> None:
    config = OmegaConf.create({"model": {"classes": value}})
    with pytest.raises(OmegaConfBaseException) as error:
        OmegaConf.to_container(config, resolve=True)
    problem = unresolved(error.value, ["data.modulus", "name"])
    assert problem.state == "model.classes cannot be resolved"
    assert problem.cause == cause
    assert problem.remedy.startswith("mend the ${...} in model.classes")
    assert problem.choices == choices


def test_an_unknown_key_of_a_scaffold_names_the_keys_of_one() -> None:
    problem = unknown_key("scaffolds.cnn.chekpoint")
    assert problem.choices[:2] == ("checkpoint", "variables")
    nested = unknown_key("scaffolds.cnn.variables.exlude")
    assert nested.choices == ("exclude", "include")


def test_a_value_of_the_wrong_type_names_its_file() -> None:
    problem = bad_value("train.steps", "Value 'x' of type 'str'", "experiment/mine.yaml")
    assert problem.cause == "Value 'x' of type 'str' (in experiment/mine.yaml)"
    assert problem.remedy == "give a whole number"
