"""Programs of TensorFlow 1, for `tf.estimator` and for sessions, as experiments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf
import yaml
from omegaconf import DictConfig, OmegaConf

from runner.config.choices import Goal, Mode
from runner.config.schema import (
    EvaluateConfig,
    ExportConfig,
    RunConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.config.validation import validate
from runner.errors import ConfigError, UserCodeError
from runner.graph.build import build_graph, graph_maker
from runner.graph.new_graph import new_graph
from runner.graph.replica import Replica
from runner.graph.user_graph import UserGraph
from tests.conformance.goldens import save_bundle
from tests.support.configs import OWN_GRAPH, program
from tests.support.runs import Runs, disturbed


def sequences(name: str, params: dict[str, Any], data: str = "counting") -> dict[str, Any]:
    held_out = {"seed": 1, "count": 32, "repeat": False}
    return program(name, data, params, train={}, validation=held_out, test=held_out)


def digits(name: str, params: dict[str, Any]) -> dict[str, Any]:
    held_out = {split: {"split": split, "batch_size": 100} for split in ("validation", "test")}
    return program(name, "digits", params, train={"split": "train"}, **held_out)


def gan(calls: bool) -> dict[str, Any]:
    return {**OWN_GRAPH, "graph": {"_target_": "tests.samples.programs.gan", "calls": calls}}


Shapes: TypeAlias = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Program:
    """A program, and the expectations of its run.

    Attributes:
      config: fields of its configuration.
      steps: how long it trains.
      objective: a metric.
      below: a bound of the metric after training from the sources.
      sources: variable -> shape, of two checkpoints.
      selected: the variables that a scaffold restores from each; None for the first means an
        assignment map.
      rate: a bound of how far a step moves a weight.
      saved: further variables in the last checkpoint.
      served: the served input, zeros for it, and the names of the outputs.
    """

    config: Mapping[str, Any]
    steps: int
    below: float
    sources: tuple[Shapes, Shapes]
    selected: tuple[str | None, str]
    rate: float
    served: tuple[str, tf.Tensor, set[str]]
    saved: set[str] = field(default_factory=set)
    objective: str = "validation/loss"


LAYER = "bert/encoder/layer_0/output/dense"
CLASSIFIED = {"class", "probabilities"}
GAN: dict[str, Any] = {
    "steps": 80,
    "below": 1.5,
    "sources": (
        {"generator/hidden/kernel": [4, 8], "generator/hidden/bias": [8]},
        {"discriminator/out/kernel": [8, 1], "discriminator/out/bias": [1]},
    ),
    "selected": ("generator/hidden/*", "discriminator/out/*"),
    "rate": 0.02,
    "saved": {"generator/out/kernel/generator_adam", "discriminator/out/kernel/discriminator_adam"},
    "served": ("noise", tf.zeros([3, 4]), {"point"}),
    "objective": "validation/distance",
}
PROGRAMS: dict[str, Program] = {
    "lstm": Program(
        sequences("lstm", {"units": 8, "learning_rate": 0.05}),
        steps=30,
        below=0.9,
        sources=(
            {"encoder/lstm_cell/kernel": [12, 32], "encoder/lstm_cell/bias": [32]},
            {"softmax/w": [8, 4]},
        ),
        selected=("encoder/*", "softmax/w"),
        rate=0.05,
        served=("features", tf.zeros([3, 4], tf.int32), CLASSIFIED),
        saved={"softmax/w/Adam_1"},
    ),
    "transformer": Program(
        sequences("bert_model_fn_builder", {}, "counting_input_fn_builder"),
        steps=12,
        below=1.2,
        sources=(
            {"bert/embeddings/word_embeddings": [4, 8], f"{LAYER}/kernel": [16, 8]},
            {f"{LAYER}/kernel": [16, 8], f"{LAYER}/bias": [8]},
        ),
        selected=(None, f"{LAYER}/*"),
        rate=0.01,
        served=("features", tf.zeros([3, 4], tf.int32), CLASSIFIED),
        saved={"bert/pooler/dense/kernel", "bert/encoder/layer_0/attention/self/query/bias/Adam"},
    ),
    "gan": Program(gan(False), **GAN),
    "gan_by_a_function": Program(gan(True), **GAN),
}


def checkpoint(path: Path, shapes: Shapes) -> dict[str, np.ndarray]:
    """Saves random values, as another program did, and returns them."""
    generator = np.random.default_rng(ord(path.name))
    values = {name: generator.normal(0, 0.3, shape).astype("f") for name, shape in shapes.items()}
    save_bundle(path, values)
    return values


def from_two_sources(folder: Path, case: Program) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the configuration that starts a program from its sources, and their values."""
    changes: dict[str, Any] = {**case.config, "scaffolds": {}}
    values: dict[str, np.ndarray] = {}
    for name, shapes, selected in zip(("a", "b"), case.sources, case.selected, strict=True):
        values |= checkpoint(folder / name, shapes)
        if selected is None:
            changes["model_fn"] = {**changes["model_fn"], "init_checkpoint": str(folder / name)}
        else:
            scaffold = ScaffoldConfig(VariablesConfig([selected]), str(folder / name))
            changes["scaffolds"][name] = scaffold
    return changes, values


def started_from(runs: Runs, case: Program, values: Mapping[str, np.ndarray]) -> None:
    """Checks that the checkpoint of the first step is a step away from the sources."""
    first = runs.values()
    for variable, value in values.items():
        np.testing.assert_allclose(first[variable], value, atol=1.1 * case.rate, err_msg=variable)


def test_an_assignment_map_and_a_scaffold_start_a_transformer(tmp_path: Path) -> None:
    transformer = PROGRAMS["transformer"]
    changes, values = from_two_sources(tmp_path, transformer)
    runs = Runs(tmp_path / "runs", **changes)
    runs.run(train=TrainConfig(1))
    started_from(runs, transformer, values)
    plan = runs.directory().plan.read_text()
    assert f"init_from_checkpoint {tmp_path / 'a'}: bert/embeddings/word_embeddings" in plan
    assert f"{LAYER}/bias" in plan
    names = [name for name, _ in tf.train.list_variables(str(runs.directory().checkpoints))]
    assert any("iterator" in name.lower() for name in names), "the position in the input is saved"


SHORT = "gan_by_a_function"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name != SHORT)) for name in PROGRAMS],
)
def test_a_program_from_two_sources_to_its_export(tmp_path: Path, name: str) -> None:
    case = PROGRAMS[name]
    changes, values = from_two_sources(tmp_path, case)
    train: dict[str, Any] = {
        "objective": case.objective,
        "log_every": 20,
        "evaluate_every": case.steps,
    }
    whole = Runs(tmp_path / "whole", **changes)
    whole.run(train=TrainConfig(case.steps, **train, checkpoint_every=case.steps))

    changes["hooks"] = disturbed("FailOnce", step=3, marker=str(tmp_path / "marker"))
    changes["train"] = TrainConfig(case.steps, **train, checkpoint_every="at 1")
    runs = Runs(tmp_path / "killed", **changes)
    with pytest.raises(UserCodeError, match="the hook failed"):
        runs.run()
    started_from(runs, case, values)
    objective, lines = runs.run()
    assert "resumes in" in lines[0]
    assert objective < case.below
    expected, values = whole.values(), runs.values()
    assert set(expected) == set(values) >= case.saved
    for variable, value in expected.items():
        np.testing.assert_array_equal(values[variable], value, variable)

    runs.shown(mode=Mode.export)
    served = tf.saved_model.load(str(runs.directory().export)).signatures["serving_default"]
    name, zeros, outputs = case.served
    answer = served(**{name: zeros})
    assert set(answer) == outputs
    assert all(len(output) == 3 for output in answer.values())


@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")  # They advise Keras's instead.
def test_layers_of_tensorflow_1_by_tf_keras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    changes = digits("cnn_of_layers", {"learning_rate": 0.02})
    train = TrainConfig(60, log_every=60, evaluate_every=60, objective="validation/accuracy")
    train.goal = Goal.maximize
    runs = Runs(tmp_path / "runs", **changes, train=train)
    assert runs.run()[0] > 0.85
    values = runs.values()
    assert {"conv/kernel", "head/kernel", "batch_normalization/gamma/Adam"} <= set(values)
    assert np.ptp(values["batch_normalization/moving_mean"]) > 0.0
    runs.shown(mode=Mode.export)
    served = tf.saved_model.load(str(runs.directory().export)).signatures["serving_default"]
    assert set(served(image=tf.zeros([3, 8, 8, 1]))) == CLASSIFIED


def test_hooks_an_init_fn_and_what_is_chosen_to_be_evaluated_and_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "hooks"
    folder.mkdir()
    changes = sequences("hooked", {"start": 5.0, "folder": str(folder)})
    train = TrainConfig(4, evaluate_every=2, checkpoint_every=1, log_every=4)
    runs = Runs(tmp_path / "runs", **changes, train=train)
    with caplog.at_level("INFO", logger="tensorflow"):
        runs.run()
    assert (folder / "batches").read_text().split() == ["2", "2"], "each evaluation starts over"
    logged = [line.split(" (")[0] for line in caplog.messages if "seven" in line]
    assert logged == ["seven = 7"] * 3
    assert sorted(path.name for path in folder.glob("timeline*")) == [
        "timeline-2.json",
        "timeline-4.json",
    ]

    weights = {}
    for which in ("scaffolds", "3"):
        (*_, shown) = runs.shown(mode=Mode.evaluate, evaluate=EvaluateConfig(which=which))
        weights[which] = float(shown.split()[-1])
    third = tf.train.load_variable(str(runs.directory().checkpoints / "model.ckpt-3"), "weight")
    assert weights == {"scaffolds": 5.0, "3": pytest.approx(third, rel=1e-3)}
    assert runs.values()["weight"] < third < 5.0
    runs.shown(mode=Mode.export, export=ExportConfig(which="3"))
    path = runs.directory().path / "export-3"
    scaled = tf.saved_model.load(str(path)).signatures["serving_default"]
    answer = scaled(features=tf.ones([1, 4], tf.int32))["scaled"]
    assert answer.numpy()[0, 0] == pytest.approx(weights["3"], rel=1e-3)
    with tf.Graph().as_default():
        example = _maker(runs.config()).spec("export").example
    assert example is not None
    assert example()["features"].shape == (1, 4)


MISTAKES: list[tuple[str, str]] = [
    ("no_spec", "ValueError: model_fn should return an EstimatorSpec"),
    ("of_another_mode", "returns an EstimatorSpec with mode 'infer': 'eval' is built"),
    ("misspelt_mode", "returns an EstimatorSpec with mode 'evaluate'"),
    ("no_train_op", "Missing train_op"),
    ("no_increment", "train_op does not increment the global step"),
    ("metric_named_loss", 'Metric with name "loss" is not allowed'),
    ("without_labels", "model_fn does not take labels, but input_fn returns labels"),
]


def _maker(config: RunConfig) -> UserGraph:
    maker = graph_maker(config)
    assert isinstance(maker, UserGraph)
    return maker


def build(config: RunConfig) -> None:
    """Builds the graphs of a program as a run does."""
    for mode in ("validation", "train"):  # Shows most mistakes, without sessions and savers.
        with new_graph(config, Replica()):
            _maker(config).spec(mode)
    build_graph(config, "validation", train=True)


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_a_wrong_model_fn(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(Runs(tmp_path, **sequences(name, {})).config())
    assert message in str(raised.value)


GRAPH = "tests.samples.programs.wrong_graph"
WRONG_GRAPHS: list[tuple[str, str]] = [
    ("no spec", "graph: tests.samples.programs.wrong_graph returns "),
    ("no loss", "graph: loss is missing for mode train"),
    ("no train_op", "graph: train_op is missing for mode train"),
    ("no increment", "graph: train_op does not increment the global step"),
    ("list", "TypeError: train_op must be one operation: tf.group(*["),
    ("dataset", "TypeError: input must be a runner.TrainingInput"),
    ("no update", "TypeError: evaluation['kept'] must be (value, update_op), given: "),
    ("pair", "TypeError: kept must be a scalar in training, given: "),
    ("vector", "TypeError: loss must be a scalar in training, given: "),
]


def test_an_evaluation_without_an_input_takes_place_once(tmp_path: Path) -> None:
    config = Runs(tmp_path, **OWN_GRAPH, graph={"_target_": GRAPH, "kind": ""}).config()
    built = build_graph(config, "validation", train=False)
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        assert set(built.evaluation.evaluate(session)) == {"loss"}


def test_what_cannot_be_fed_needs_a_receiver(tmp_path: Path) -> None:
    config = Runs(tmp_path, **sequences("lstm", {}, "pairs")).config()
    with (
        tf.Graph().as_default(),
        pytest.raises(ConfigError, match=r"'features' of input_fns\.test"),
    ):
        _maker(config).spec("export")


@pytest.mark.parametrize(("kind", "message"), WRONG_GRAPHS)
def test_a_wrong_graph(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(Runs(tmp_path, **OWN_GRAPH, graph={"_target_": GRAPH, "kind": kind}).config())
    assert message in str(raised.value)


def test_that_a_function_does_not_increment_the_step_shows_only_in_a_run(tmp_path: Path) -> None:
    runs = Runs(tmp_path, **OWN_GRAPH, graph={"_target_": GRAPH, "kind": "function"})
    with pytest.raises(ConfigError, match="graph: train_op did not increment the global step 0"):
        runs.run()


def test_the_configuration_in_the_docs_is_valid() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tutorials" / "estimator.md").read_text()
    (text,) = re.findall(r"```yaml.*?\n(# @package.*?)```", page, re.DOTALL)
    config = OmegaConf.merge(OmegaConf.structured(RunConfig), yaml.safe_load(text))
    assert isinstance(config, DictConfig)
    assert validate(config).params == {"learning_rate": 0.01, "units": 16}
