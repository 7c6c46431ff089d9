"""Warm starts of eager models, without a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from numpy.typing import NDArray

import runner
from runner.commands.command_line import main as command_line
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.errors import CheckpointError, ConfigError, PlanError
from runner.restoration.eager import unchanged
from tests.support.forked import ROOT, Forks

# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Values = dict[str, NDArray[Any]]


def net(seed: int = 0, name: str = "net") -> keras.Model:
    """A model of two parts and a head."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    body = [layers.Dense(3, name="dense"), layers.BatchNormalization(name="norm")]
    cnn = keras.Sequential(body, name="cnn")
    lstm = keras.Sequential([layers.Dense(3, name="dense")], name="lstm")
    return keras.Sequential([keras.Input((4,)), cnn, lstm, layers.Dense(2, name="head")], name=name)


def values(model: Any) -> Values:
    return {variable.path.partition("/")[2]: variable.numpy() for variable in model.variables}


def scaffold(include: str, checkpoint: object, **keys: Any) -> dict[str, Any]:
    return {"variables": {"include": [include]}, "checkpoint": checkpoint, **keys}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eager")
    pretrained = net(seed=1, name="other")
    pretrained.save(folder / "net.keras")
    pretrained.save_weights(folder / "net.weights.h5")
    tf.train.Checkpoint(model=pretrained).write(str(folder / "objects"))
    np.savez(folder / "net.npz", **dict[str, Any](values(pretrained)))
    torch = {"lstm.weight": np.ones((3, 3), np.float32), "lstm.bias": np.ones(3, np.float32)}
    safetensors.numpy.save_file(torch, folder / "torch.safetensors")
    return folder


PRETRAINED = net(seed=1)


@pytest.mark.parametrize("kind", [str, Path, PurePath, os.fsencode, np.str_])
def test_paths_may_be_of_any_kind(kind: Any, folder: Path) -> None:
    file, name = str(folder / "net.npz"), "head/kernel"
    entry = scaffold("head/*", kind(file), average=[kind(file), kind(file)])
    model = net()
    runner.warm_start(model, {"head": entry})
    (folder / "head.yaml").write_text(json.dumps({"head": scaffold("head/*", file)}))
    runner.warm_start(model, kind(folder / "head.yaml"))
    assert name in runner.open_checkpoint(kind(file))
    assert not runner.checkpoints.diff(kind(file), kind(file))
    assert runner.propose(model, kind(file)).scaffolds == runner.propose(model, file).scaffolds
    np.testing.assert_array_equal(values(model)[name], values(PRETRAINED)[name])


def backbone(name: str) -> keras.Model:
    inputs = keras.Input((4,))
    inner = keras.Model(inputs, keras.layers.Dense(3, name="dense")(inputs), name="inner")
    return keras.Model(inputs, keras.layers.Dense(3, name="out")(inner(inputs)), name=name)


def test_functional_parts_are_addressed_by_their_names(tmp_path: Path) -> None:
    inputs = keras.Input((4,))
    alone = keras.Model(inputs, keras.layers.Dense(2, name="head")(backbone("left")(inputs)))
    both = keras.layers.Concatenate()([backbone("left")(inputs), backbone("right")(inputs)])
    two = keras.Model(inputs, keras.layers.Dense(2, name="head")(both))
    stored = {name: np.ones((4, 3), np.float32) for name in ("left.dense", "dense/kernel", "w")}
    safetensors.numpy.save_file(stored, tmp_path / "x.safetensors")
    file = str(tmp_path / "x.safetensors")
    for model in (alone, two):
        keys = scaffold("left/inner/dense/kernel", file, rename={"left/inner/dense/kernel": "w"})
        plan = runner.plan(model, {"left": keys}, restoration={"expect": {"left/inner/*": "some"}})
        assert not plan.problems, str(plan)
        assert re.search(r"left/inner/dense/kernel +4x3 +left: w ", repr(plan))
        keys = scaffold("left/inner/*/kernel", file, rules={"left/inner/{n}/kernel": "left.{n}"})
        plan = runner.plan(model, {"left": keys})
        assert [a.source_tensor.names for a in plan.assignments if a.source_tensor] == [
            ("left.dense",)
        ]
    # Without a prefix where that is unique, as runs before had it.
    plan = runner.plan(alone, {"left": scaffold("dense/kernel", file)})
    assert [a.source_tensor.names for a in plan.assignments if a.source_tensor] == [
        ("dense/kernel",)
    ]


def test_unnamed_variables_count_from_the_first_of_the_model() -> None:
    class Scale(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.first = self.add_weight(shape=(3,))
            self.second = self.add_weight(shape=(3,))

        def call(self, x: Any) -> Any:
            return x * self.first + self.second

    for _ in range(2):
        model = keras.Sequential([keras.Input((3,)), Scale(name="one"), Scale(name="two")])
        rows = runner.plan(model, {"all": {"variables": {"include": ["*"]}}}).assignments
        names = [assignment.variable.name for assignment in rows]
        assert names == ["one/variable", "one/variable_1", "two/variable_2", "two/variable_3"]


@pytest.mark.parametrize("file", ["net.keras", "net.weights.h5", "net.npz"])
def test_three_parts_from_three_places(folder: Path, file: str) -> None:
    model, untouched = net(), net()
    made = runner.warm_start(
        model,
        {
            "cnn": scaffold("cnn/*", str(folder / file)),
            "lstm": scaffold(
                "lstm/*",
                folder / "torch.safetensors",
                convert={"*kernel": "torch_dense"},
                rename={"lstm/dense/kernel": "lstm.weight", "lstm/dense/bias": "lstm.bias"},
            ),
        },
        restoration={"verify": True, "expect": {"cnn": "all", "head/*": "scratch"}},
    )
    after = values(model)
    for name, value in values(PRETRAINED).items():
        ones, kept = np.ones_like(value), values(untouched)[name]
        part = name.split("/")[0]
        np.testing.assert_array_equal(
            after[name], {"cnn": value, "lstm": ones, "head": kept}[part], err_msg=name
        )
    assert not made.problems
    shown = str(made)
    assert "lstm.weight (transposed (1, 0))" in shown
    assert "unchanged" in shown
    assert json.loads(made.to_json())["sound"]
    assert "<title>net: plan</title>" in made.to_html()


def test_a_file_of_a_part_is_matched_by_position(tmp_path: Path) -> None:
    def part() -> keras.Model:
        # Keras counts up the names of these layers in all of the process.
        return keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(3)], name="cnn")

    source, model = part(), keras.Sequential([keras.Input((3,)), part(), keras.layers.Dense(2)])
    source.build((None, 3))
    source.save_weights(tmp_path / "part.weights.h5")
    given = scaffold("cnn/*", tmp_path / "part.weights.h5", rename={"cnn/": ""})
    runner.warm_start(model, {"cnn": given})
    for one, other in zip(model.layers[0].weights, source.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_scaffolds_are_mappings_configs_or_a_yaml_file(folder: Path, tmp_path: Path) -> None:
    checkpoint = str(folder / "net.keras")
    config = ScaffoldConfig(VariablesConfig(["cnn/*"]), checkpoint)
    below = tmp_path / "experiment.yaml"
    below.write_text(
        "restoration: {verify: true}\nname: x\nscaffolds:\n  cnn:\n"
        f"    variables: {{include: [cnn/*]}}\n    checkpoint: {checkpoint}\n"
    )
    alone = tmp_path / "scaffolds.yaml"
    alone.write_text(f"cnn: {{variables: {{include: [cnn/*]}}, checkpoint: '{checkpoint}'}}\n")
    wanted = str(runner.plan(net(), {"cnn": scaffold("cnn/*", checkpoint)}))
    for given in ({"cnn": config}, below, str(alone)):
        assert str(runner.plan(net(), given)) == wanted


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "pattern": ({"variables": {"include": ["cmn/*"]}}, {}, PlanError, "choices: cnn/*"),
    "checkpoint": ({"checkpoint": "net.kers"}, {}, PlanError, "there is no checkpoint at net.kers"),
    "key": ({"chekpoint": "x"}, {}, ConfigError, "choices: scaffolds.cnn.checkpoint"),
    "value": ({"missing": "never"}, {}, ConfigError, "choices: error, init"),
    "rule": ({}, {"verfy": True}, ConfigError, "restoration.verfy is not a key"),
    "experiment": ({"checkpoint": "experiment:x"}, {}, PlanError, "runs/x/001"),
    "mlflow": ({"checkpoint": "runs:/1"}, {}, PlanError, "no tracking store is given"),
    "schedule": ({"freeze_until_step": 9}, {}, ConfigError, "freeze_until_step is 9"),
    "shape": ({"rename": {"re:.*": "head/kernel"}}, {}, PlanError, "has shape [4, 3]"),
    "slots": ({"state": ["optimizer_slots"]}, {}, PlanError, "owns no variable"),
    "expectation": ({}, {"expect": {"cnn": "scratch"}}, PlanError, "would be restored"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_changes_nothing(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    keys, rules, error, message = MISTAKES[case]
    model = net()
    before = values(model)
    good = scaffold("lstm/*", folder / "net.npz", trainable=False)
    wrong = {**scaffold("cnn/*", folder / "net.npz"), **keys}
    with pytest.raises(error, match=message.replace("[", r"\[").replace("*", r"\*")):
        runner.warm_start(model, {"lstm": good, "cnn": wrong}, restoration=rules)
    assert all(variable.trainable for variable in model.trainable_variables)
    np.testing.assert_equal(values(model), before)


def test_a_value_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    stored = values(PRETRAINED)
    stored["head/bias"] = np.array([1.0, np.nan], np.float32)
    np.savez(tmp_path / "nan.npz", **dict[str, Any](stored))
    model = net()
    before = values(model)
    with pytest.raises(CheckpointError, match=r"head/bias in .* holds NaN"):
        runner.warm_start(model, {"all": scaffold("*", tmp_path / "nan.npz", finite=True)})
    np.testing.assert_equal(values(model), before)


def test_a_part_of_a_variable_keeps_its_present_value(tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", table=np.ones((2, 3), np.float32))
    table = tf.Variable(np.zeros((4, 3), np.float32))
    runner.warm_start(
        {"table": table}, {"all": scaffold("*", tmp_path / "wide.npz", shape="pad_or_slice")}
    )
    np.testing.assert_array_equal(table.numpy(), [[1] * 3] * 2 + [[0] * 3] * 2)


class Encoder(tf.Module):
    """A module with variables in attributes, lists and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([0.0, 0.0])
        self.layers = [tf.Variable(0.0), {"b": tf.Variable(0.0)}]
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 2))
        self.same = self.w


def test_modules_are_named_as_their_checkpoints_and_mappings_as_they_say(tmp_path: Path) -> None:
    source, module = Encoder(), Encoder()
    for at, each in enumerate((source.w, source.layers[0], source.layers[1]["b"])):
        each.assign(tf.fill(each.shape, at + 1.0))
    prefix = tf.train.Checkpoint(encoder=source).write(str(tmp_path / "objects"))
    keys = scaffold("*", prefix, rename={"re:(.*)": r"encoder/\1"})
    keys["variables"]["exclude"] = ["dense/*"]
    made = runner.warm_start(module, {"all": keys})
    names = [assignment.variable.name for assignment in made.assignments]
    assert sorted(names) == ["dense/bias", "dense/kernel", "layers/0", "layers/1/b", "w"]
    assert module.w.numpy().tolist() == [1.0, 1.0]
    assert (float(module.layers[0]), float(module.layers[1]["b"])) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (keras.Sequential([keras.layers.Dense(2)]), "pass input_shape"),
        (tf.Module(), "has no variables"),
        ({"w": 1.0}, "w is a float"),
        (lambda x: x, "the model is a function"),
        (None, "the model is None"),
    ],
    ids=["unbuilt", "module", "mapping", "function", "nothing"],
)
def test_what_is_no_model_is_refused(model: Any, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        runner.plan(model, {"all": scaffold("*", folder / "net.npz")})


def test_an_empty_file_and_the_name_of_an_optimizer_are_refused(folder: Path) -> None:
    (folder / "empty.yaml").write_text("")  # As `runner map ... > empty.yaml` leaves when it fails.
    with pytest.raises(ConfigError, match=r"empty\.yaml holds no scaffold"):
        runner.warm_start(net(), folder / "empty.yaml")
    head = {"head": scaffold("head/*", folder / "net.npz")}
    with pytest.raises(ConfigError, match="optimizer is a str"):
        runner.warm_start(net(), head, optimizer="adam")


def test_an_unbuilt_model_is_built_from_an_input_shape(folder: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(2, name="head")])
    given = {"head": scaffold("head/*", folder / "net.npz")}
    runner.warm_start(model, given, input_shape=(None, 3))
    np.testing.assert_array_equal(model.layers[0].kernel, PRETRAINED.layers[-1].kernel)


def test_a_scaffold_that_is_not_trainable_does_not_train(folder: Path) -> None:
    model = net()
    runner.warm_start(model, {"cnn": scaffold("cnn/*", folder / "net.npz", trainable=False)})
    trains = [variable.path.removeprefix("net/") for variable in model.trainable_variables]
    assert trains == ["lstm/dense/kernel", "lstm/dense/bias", "head/kernel", "head/bias"]
    model(np.ones((4, 4)), training=True)
    after, pretrained = values(model), values(PRETRAINED)
    assert not np.array_equal(after["cnn/norm/moving_mean"], pretrained["cnn/norm/moving_mean"])
    with pytest.raises(ConfigError, match=r"head/bias is a tf\.Variable"):
        runner.plan(
            {f"head/{each}": tf.Variable([0.0, 0.0]) for each in ("kernel", "bias", "z")},
            {"head": scaffold("*", folder / "net.npz", trainable=False)},
        )


def test_inside_a_graph_it_refers_to_sessions(folder: Path) -> None:
    model = net()
    with tf.Graph().as_default(), pytest.raises(ConfigError, match=r"runner\.Scaffold"):
        runner.plan(model, {"cnn": scaffold("cnn/*", folder / "net.npz")})


def test_every_replica_gets_the_values(folder: Path, forks: Forks) -> None:
    command = [sys.executable, "-m", "tests.support.replicas", str(folder / "net.npz")]
    process = forks.start(command, cwd=ROOT, stderr=subprocess.PIPE)
    errors = process.communicate()[1]
    assert process.returncode == 0, errors


def with_slots(optimizer: Any) -> keras.Model:
    """A model with an optimizer, each of whose variables has values of its own."""
    model = net(seed=1)
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    for at, each in enumerate(optimizer.variables):
        if each.name != "learning_rate":
            each.assign(np.full(each.shape, at + 1))
    return model


def named_slots(model: keras.Model) -> Mapping[str, Any]:
    plan = runner.plan(model, {}, optimizer=model.optimizer)
    names = [assignment.variable.name for assignment in plan.assignments][len(model.variables) :]
    own = [variable for variable in model.optimizer.variables if variable.name != "learning_rate"]
    return dict(zip(names, own, strict=True))


def test_slots_come_with_their_variables(tmp_path: Path) -> None:
    source, model = with_slots(keras.optimizers.Adam(use_ema=True)), net()
    slots = named_slots(source)
    assert {
        "cnn/dense/kernel/Adam/momentum",
        "cnn/dense/kernel/ExponentialMovingAverage",
        "Adam/iterations",
    } <= {*slots}
    stored = {**values(source), **{name: each.numpy() for name, each in slots.items()}}
    np.savez(tmp_path / "slots.npz", **dict[str, Any](stored))
    model.compile(keras.optimizers.Adam(use_ema=True), "mse")
    state = ["weights", "batch_norm", "optimizer_slots", "moving_averages"]
    runner.warm_start(model, {"all": scaffold("*", tmp_path / "slots.npz", state=state)})
    for name, each in named_slots(model).items():
        np.testing.assert_array_equal(each.numpy(), slots[name].numpy(), err_msg=name)


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.1, use_ema=True),
    "Nadam": lambda: keras.optimizers.Nadam(0.1, use_ema=True),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slots_of_keras_files_need_no_rename(optimizer: str, tmp_path: Path) -> None:
    source, model = with_slots(OPTIMIZERS[optimizer]()), net()
    model.compile(OPTIMIZERS[optimizer](), "mse")
    source.save_weights(tmp_path / "net.weights.h5")
    state = ["weights", "batch_norm", "optimizer_slots"]
    state += ["moving_averages"] if optimizer.endswith("dam") else []
    given = {"all": scaffold("*", tmp_path / "net.weights.h5", state=state)}
    if optimizer == "LossScaleOptimizer":  # Its file counts otherwise: not taken, and reported.
        names = [assignment.variable.name for assignment in runner.plan(model, given).assignments]
        assert {
            "head/kernel/Adam/momentum",
            "Adam/iterations",
            "Adam/loss_scale/iterations",
        } < {*names}
        return
    runner.warm_start(model, given)
    for one, other in zip(model.optimizer.variables, source.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


def test_the_chain_of_provenance_goes_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()
    made = runner.warm_start(model, {"cnn": scaffold("cnn/*", folder / "net.keras")})
    model.save(tmp_path / "model.keras")
    made.write_provenance(tmp_path)
    assert command_line(["inspect", str(tmp_path / "model.keras"), "--provenance"]) == 0
    assert "cnn/dense/kernel <- cnn: " in capsys.readouterr().out


class Interrupted(keras.callbacks.Callback):
    """Ends the process, as far as `fit` knows, after an epoch."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("first", ["warm start", "backup"])
def test_a_fit_that_resumes_is_not_warm_started_again(
    first: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = tmp_path / "net.npz"
    shutil.copy(folder / "net.npz", copied)

    def fit(*more: Any) -> tuple[keras.Model, runner.WarmStart]:
        model = net()
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        given = {
            "cnn": scaffold("cnn/*", copied, trainable=False),
            "lstm": scaffold("lstm/*", copied),
        }
        start = runner.WarmStart(given)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        callbacks = [start, backup] if first == "warm start" else [backup, start]
        data = np.ones((4, 4)), np.ones((4, 2))
        model.fit(*data, epochs=2, verbose=0, shuffle=False, callbacks=[*callbacks, *more])
        return model, start

    with pytest.raises(KeyboardInterrupt):
        fit(Interrupted(after=1))
    resumed, start = fit()
    shutil.rmtree(tmp_path / "backup")
    whole, started = fit()
    assert started.plan is not None
    np.testing.assert_array_equal(
        values(whole)["cnn/dense/kernel"], values(PRETRAINED)["cnn/dense/kernel"]
    )
    np.testing.assert_equal(values(resumed), values(whole))
    if first == "backup":
        assert start.plan is None
        assert "net has trained 1 steps: no warm start" in caplog.text
        copied.unlink()
        whole.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0, callbacks=[started])


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("scale(0.5)", [[0.0, 0.5], [1.0, 1.5]]),
        ("mean(1)", [[0.5], [2.5]]),
        ("pad(0, 1, value=0.5)", [[0.0, 1.0], [2.0, 3.0], [0.5, 0.5]]),
    ],
)
def test_steps_on_integers_are_not_rounded(
    tmp_path: Path, step: str, expected: list[list[float]]
) -> None:
    np.savez(tmp_path / "counts.npz", counts=np.arange(4).reshape(2, 2))
    variable = tf.Variable(np.zeros_like(expected, np.float32))
    rules = {"w": f"counts | {step}"}
    runner.warm_start(
        {"w": variable}, {"a": scaffold("w", tmp_path / "counts.npz", rules=rules, cast=True)}
    )
    np.testing.assert_array_equal(variable.numpy(), np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("equation", "shape"),
    [("bc,cd->bd", (6,)), ("bc,dc->bd", (6,)), ("bc,cnh->bnh", (3, 2)), ("bc,nch->bnh", (3, 2))],
)
def test_the_axes_of_an_einsum_dense_are_of_its_equation(
    tmp_path: Path, equation: str, shape: tuple[int, ...]
) -> None:
    weight, inputs = np.random.default_rng(0).normal(size=(2, 6, 6)).astype(np.float32)
    safetensors.numpy.save_file({"q.weight": weight}, tmp_path / "q.safetensors")
    layer = keras.layers.EinsumDense(equation, shape, name="q")
    model = keras.Sequential([keras.Input((6,)), layer])
    rules = {"q/": "q. | torch"}
    plan = runner.warm_start(model, {"a": scaffold("*", tmp_path / "q.safetensors", rules=rules)})
    expected = (inputs @ weight.T).reshape(6, *shape)
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)
    np.testing.assert_array_equal(plan.invert(model)["q.weight"], weight)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_variables_have_their_values_back(dtype: str, shape: tuple[int, ...]) -> None:
    first, second = (tf.Variable(tf.cast(tf.fill(shape, number), dtype)) for number in (1, 0))
    with unchanged([first, second]):
        first.assign(second)
    np.testing.assert_array_equal(first.numpy(), np.ones(shape, first.numpy().dtype))
    np.testing.assert_array_equal(second.numpy(), np.zeros(shape, first.numpy().dtype))
