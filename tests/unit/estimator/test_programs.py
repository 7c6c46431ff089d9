"""Programs of TensorFlow 1, for `tf.estimator` and for sessions, as experiments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from omegaconf import DictConfig, OmegaConf

from runner.config.choices import Mode
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.config.validation import validate
from runner.errors import ConfigError, UserCodeError
from tests.tiny.configs import OWN_GRAPH, program
from tests.tiny.programs import bert_encoder
from tests.tiny.runs import Runs, disturbed, written


def sequences(name: str, params: dict[str, Any], data: str = "counting") -> dict[str, Any]:
    held_out = {"seed": 1, "count": 32, "repeat": False}
    return program(name, data, params, train={}, validation=held_out, test=held_out)


def trained(steps: int, **changes: Any) -> TrainConfig:
    given = {"log_every": 20, "evaluate_every": steps, "checkpoint_every": steps, **changes}
    return TrainConfig(steps=steps, **given)


def test_a_cnn_reads_digits_and_is_evaluated_and_served(tmp_path: Path) -> None:
    held_out = {each: {"split": each, "batch_size": 100} for each in ("validation", "test")}
    changes = program(
        "cnn", "digits", {"learning_rate": 0.01}, train={"split": "train"}, **held_out
    )
    runs = Runs(tmp_path / "runs", **changes, train=trained(80, evaluate_every=40))
    objective, lines = runs.run()
    assert objective < 0.5
    assert [line.split()[1] for line in lines if "validation  loss" in line] == ["40", "80"]
    (shown,) = runs.shown(mode=Mode.evaluate)
    assert float(shown.split()[-1]) > 0.85, "accuracy on the test split"
    runs.shown(mode=Mode.export)
    served = tf.saved_model.load(str(runs.directory().export)).signatures["serving_default"]
    outputs = served(image=tf.zeros([3, 8, 8, 1]))
    assert outputs["class"].shape == [3]
    assert outputs["probabilities"].shape == [3, 10]
    assert set(written(runs.directory().path / "tensorboard")) == {"train_accuracy"}


def test_an_lstm_resumes_bit_for_bit(tmp_path: Path) -> None:
    changes = sequences("lstm", {"units": 8, "learning_rate": 0.01}) | {"train": trained(20)}
    whole = Runs(tmp_path / "whole", **changes)
    whole.run()
    changes["train"].checkpoint_every = 10
    killed = Runs(tmp_path / "killed", **changes)
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(UserCodeError, match="the hook failed"):
        killed.run(hooks=hooks)
    assert "resumes in" in killed.run(hooks=hooks)[1][0]
    expected, found = whole.values(), killed.values()
    assert set(expected) == set(found) >= {"encoder/lstm_cell/kernel", "softmax/w/Adam_1"}
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def bert(checkpoint: str | None, learning_rate: float) -> dict[str, Any]:
    changes = sequences("bert_model_fn_builder", {}, "counting_input_fn_builder")
    changes["model_fn"] |= {"init_checkpoint": checkpoint, "learning_rate": learning_rate}
    return changes


def pretrained(folder: Path, seed: int) -> tuple[str, dict[str, Any]]:
    """Saves an encoder as another program did; returns its checkpoint and its values."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(seed)
        bert_encoder(tf.zeros([1, 6], tf.int32))
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(folder / f"bert{seed}.ckpt"))
        values = {each.op.name: each for each in tf.compat.v1.global_variables()}
        return path, session.run(values)


def test_a_transformer_is_fine_tuned_from_two_sources(tmp_path: Path) -> None:
    (mapped, first), (restored, second) = (pretrained(tmp_path, seed) for seed in (1, 2))
    top = ScaffoldConfig(VariablesConfig(["bert/encoder/layer_1/*"]), restored)
    # The rate is 0: what training saves is what it starts from.
    runs = Runs(tmp_path / "runs", scaffolds={"top": top}, **bert(mapped, 0.0))
    plan = "\n".join(runs.shown(mode=Mode.plan))
    assert f"init_from_checkpoint {mapped}: bert/pooler/dense/kernel" in plan
    assert f"top: 16 variables (600 values) from {restored}" in plan
    assert runs.run(train=trained(1))[0] < 2.0
    values = runs.values()
    for name in first:
        expected = second if name.startswith("bert/encoder/layer_1/") else first
        np.testing.assert_array_equal(values[name], expected[name], name)


@pytest.mark.parametrize("calls", [False, True])
def test_a_gan_trains_by_two_optimizers(tmp_path: Path, calls: bool) -> None:
    graph = {"_target_": "tests.tiny.programs.gan", "calls": calls}
    train = trained(80, objective="validation/distance", evaluate_every=40)
    runs = Runs(tmp_path / "runs", graph=graph, train=train, **OWN_GRAPH)
    hooks = disturbed("FailOnce", step=60, marker=str(tmp_path / "marker"))
    train.checkpoint_every = 40
    with pytest.raises(UserCodeError, match="the hook failed"):
        runs.run(hooks=hooks)
    objective, lines = runs.run(hooks=hooks)
    assert "resumes in" in lines[0]
    assert objective < 1.0
    assert {"generator/out/kernel", "discriminator/out/kernel/discriminator_adam"} <= set(
        runs.values()
    )


MISTAKES: list[tuple[str, str]] = [
    ("no_spec", "ValueError: model_fn should return an EstimatorSpec"),
    ("of_another_mode", "returns an EstimatorSpec with mode 'infer': 'eval' is built"),
    ("misspelt_mode", "returns an EstimatorSpec with mode 'evaluate'"),
    ("no_train_op", "Missing train_op"),
    ("no_increment", "train_op does not increment the global step"),
    ("wrong_predictions", "predictions must be Tensor, given: 1"),
    ("metric_named_loss", 'Metric with name "loss" is not allowed'),
    ("other_arguments", "has following not expected args: ['learning_rate']"),
    ("without_labels", "model_fn does not take labels, but input_fn returns labels"),
]


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_a_wrong_model_fn(tmp_path: Path, name: str, message: str) -> None:
    runs = Runs(tmp_path / "runs", **sequences(name, {}))
    with pytest.raises(ConfigError) as raised:
        runs.run()
    assert message in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_the_configuration_in_the_docs_is_valid() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tutorials" / "estimator.md").read_text()
    (text,) = re.findall(r"```yaml\n(# @package.*?)```", page, re.DOTALL)
    config = OmegaConf.merge(OmegaConf.structured(RunConfig), yaml.safe_load(text))
    assert isinstance(config, DictConfig)
    assert validate(config).params == {"learning_rate": "1e-3", "units": 64}
