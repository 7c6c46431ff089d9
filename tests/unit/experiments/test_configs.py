from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from runner.config.composition import register
from runner.config.validation import validate
from runner.runs.run_directory import RunDirectory
from runner.sweeps.grid_sweeper import grid
from runner.sweeps.points import params_as_typed
from tests.support.composing import composing
from tests.support.runs import Runs

CONF = Path(__file__).resolve().parents[3] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OPTIMIZERS = sorted({path.stem for path in (CONF / "optimizer").glob("*.yaml")} - {"compiled"})


def composed(experiment: str, *overrides: str) -> DictConfig:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [f"+experiment={experiment}", *overrides])


@pytest.fixture(scope="module")
def configs() -> dict[str, DictConfig]:
    return {experiment: composed(experiment, "seed=5") for experiment in EXPERIMENTS}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_is_valid_and_is_named_like_its_file(
    configs: dict[str, DictConfig], experiment: str
) -> None:
    config = validate(configs[experiment])
    assert (config.name, config.data["seed"]) == (experiment, 5)


LEARNED = ["train.steps=80"]
SHORT = ["train.steps=2", "data.length=2", "data.evaluation_sequences=16", "data.batch_size=8"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("experiment", "overrides", "restored"),
    [
        ("short_sequences", {"cnn": LEARNED}, {"cnn": 12}),
        (
            "lstm_cnn",
            {"cnn": LEARNED, "lstm": [*SHORT, f"scaffolds.cnn.overrides={LEARNED}"]},
            {"cnn": 12, "lstm": 3},
        ),
    ],
)
def test_an_experiment_trains_with_all_its_sources(
    tmp_path: Path, experiment: str, overrides: dict[str, list[str]], restored: dict[str, int]
) -> None:
    with composing(tmp_path / "conf"):
        run_dir = f"run_dir={tmp_path / experiment}"
        command = [f"+experiment={experiment}", "tracking=none", *SHORT, run_dir]
        config = validate(compose("config", command))
        for name, source_overrides in overrides.items():
            config.scaffolds[name].overrides = source_overrides
        runs = Runs(tmp_path / experiment)
        objective = runs.start(config)
    assert objective is not None
    assert np.isfinite(objective)
    trained = ["digits_cnn", "short_sequences", "lstm_cnn"][: len(restored) + 1]
    assert [line for line in runs.lines() if ": runs in" in line] == [
        f"{name}: runs in {tmp_path / name / '001'}" for name in trained
    ]
    accuracy = RunDirectory(tmp_path / "digits_cnn" / "001").load_record().objective
    assert accuracy is not None
    assert accuracy > 0.9, "on unseen digits"
    for name, count in restored.items():
        assert any(line.startswith(f"  {name}: {count} variables") for line in runs.lines())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_config_builds_an_optimizer_of_sessions(optimizer: str) -> None:
    config = OmegaConf.load(CONF / "optimizer" / f"{optimizer}.yaml")
    assert config.learning_rate > 0
    with tf.Graph().as_default():
        kinds = keras.optimizers.Optimizer | tf.compat.v1.train.Optimizer
        assert isinstance(instantiate(config), kinds)


def test_a_source_of_lstm_cnn_is_exchanged_by_one_override() -> None:
    cnn, lstm = "experiment:digits_cnn", "experiment:short_sequences"
    for override, expected in (
        ((), (cnn, lstm)),
        (("scaffold@scaffolds.cnn=random",), (None, lstm)),
        (("scaffold@scaffolds.lstm=random",), (cnn, None)),
    ):
        scaffolds = validate(composed("lstm_cnn", *override)).scaffolds
        assert (scaffolds["cnn"].checkpoint, scaffolds["lstm"].checkpoint) == expected
        for name, scaffold in scaffolds.items():
            assert scaffold.variables.include == [f"{name}/*"]


@pytest.mark.parametrize(
    ("experiment", "overrides", "train_cnn"),
    [
        ("short_sequences", [], False),
        ("short_sequences", ["~scaffolds.cnn"], True),
        ("lstm_cnn", ["scaffolds.cnn.trainable=false"], False),
        ("lstm_cnn", ["~scaffolds.cnn"], True),
    ],
)
def test_the_cnn_is_called_as_its_scaffold_is_trained(
    experiment: str, overrides: list[str], train_cnn: bool
) -> None:
    assert composed(experiment, *overrides).model.train_cnn is train_cnn


def test_the_cnn_has_the_same_size_in_all_experiments(configs: dict[str, DictConfig]) -> None:
    models = [config.model for config in configs.values()]
    for key in ("filters", "embedding", "dropout"):
        assert all(model[key] == models[0][key] for model in models)


def test_the_study_of_warm_starts_has_every_combination_three_times() -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        study = ["+experiment=lstm_cnn", "+study=warm_start"]
        params = compose("config", study, return_hydra_config=True).hydra.sweeper.params
        typed = params_as_typed(OmegaConf.to_container(params), [])
        points = grid(OverridesParser.create().parse_overrides([*typed, *study]))
        seeds = Counter(
            override for point in points for override in point.overrides if "seed=" in override
        )
        assert seeds == {f"seed={seed}": 4 for seed in range(3)}
        first = [list(point.overrides) for point in points if "seed=0" in point.overrides]
        configs = [validate(compose("config", overrides)) for overrides in first]
    cnn, lstm = "experiment:digits_cnn", "experiment:short_sequences"
    assert {
        tuple(config.scaffolds[name].checkpoint for name in ("cnn", "lstm")) for config in configs
    } == {(cnn, lstm), (cnn, None), (None, lstm), (None, None)}
    assert {config.sweep.threshold for config in configs} == {0.9}
