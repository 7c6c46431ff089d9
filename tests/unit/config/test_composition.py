"""Further experiments are composed beside the one that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from runner.config.composition import compose_experiment, experiment_names, forced
from runner.config.schema import register
from runner.errors import ConfigError

CONF = Path(__file__).resolve().parents[3] / "conf"


@pytest.fixture
def _command() -> Iterator[None]:
    """What Hydra has set up while `+experiment=lstm_cnn` runs."""
    register()
    before = HydraConfig.instance().cfg
    with initialize_config_dir(str(CONF), version_base="1.3"):
        running = compose("config", ["+experiment=lstm_cnn"], return_hydra_config=True)
        HydraConfig.instance().set_config(running)
        yield
    HydraConfig.instance().cfg = before


@pytest.mark.usefixtures("_command")
def test_an_experiment_is_composed_with_overrides_of_its_own() -> None:
    config = compose_experiment("digits_cnn", ["train.steps=3", "optimizer=sgd"])
    assert (config.name, config.train.steps) == ("digits_cnn", 3)
    assert config.optimizer._target_.endswith("GradientDescentOptimizer")


@pytest.mark.usefixtures("_command")
def test_an_unknown_experiment() -> None:
    with pytest.raises(ConfigError, match="experiment 'digit_cnn' is not known") as error:
        compose_experiment("digit_cnn", [])
    assert error.value.problems[0].choices == ("digits_cnn", "lstm_cnn", "short_sequences")


@pytest.mark.usefixtures("_command")
def test_a_bad_override_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"train\.steps has a value that does not fit"):
        compose_experiment("digits_cnn", ["train.steps=many"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("scaffolds.cnn.trainable=false", "++scaffolds.cnn.trainable=false"),
        ("scaffolds.0.trainable=false", "scaffolds.0.trainable=false"),
        ("restoration.expect.cnn=3", "++restoration.expect.cnn=3"),
        ("hydra.sweeper.params={seed: [1, 2]}", "++hydra.sweeper.params={seed: [1, 2]}"),
        ("hydra.sweeper.objectives={a: minimize}", "++hydra.sweeper.objectives={a: minimize}"),
        ("hydra.sweeper.n_trials=3", "hydra.sweeper.n_trials=3"),
        ("+hydra.sweeper.params={seed: 1}", "+hydra.sweeper.params={seed: 1}"),
    ],
)
def test_what_the_yaml_need_not_hold(override: str, expected: str) -> None:
    assert forced(override) == expected


@pytest.mark.usefixtures("_command")
def test_what_is_composed_again_is_as_it_was_at_first() -> None:
    first = compose_experiment("digits_cnn", ["train.steps=3"])
    first.name = "changed"
    assert compose_experiment("digits_cnn", ["train.steps=3"]).name == "digits_cnn"
    assert compose_experiment("digits_cnn", ["train.steps=4"]).train.steps == 4


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
