"""Runs that prove their warm start before they begin, and are verified after they have ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import runner
from runner.commands.command_line import run_command
from runner.config.choices import StateClass
from runner.config.schema import ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import CheckpointError, ConfigError, PlanError, RunDirectoryError, RunnerError
from runner.planning.model_variables import model_variables
from runner.training import first_values
from tests.samples.experiment import Net
from tests.support.configs import OWN_GRAPH
from tests.support.runs import Runs

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
FILES = (
    "net.weights.h5",
    pytest.param("net.npz", marks=pytest.mark.soak),
    pytest.param("net.ckpt", marks=pytest.mark.soak),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of a net in several formats, and a reference of it."""
    folder = tmp_path_factory.mktemp("source")
    model, generator = Net(), np.random.default_rng(0)
    points = generator.normal(size=(3, 8)).astype(np.float32)
    model(points)
    for weight in model.weights:
        weight.assign(generator.uniform(0.5, 1.5, weight.shape))
    variables = model_variables(model)
    values: dict[str, Any] = {name: variable.numpy() for name, variable in variables.items()}
    np.savez(folder / "net.npz", **values)
    model.save_weights(folder / "net.weights.h5")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        copies = {name: tf.Variable(value, name="v") for name, value in values.items()}
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(copies)
        saver.save(session, str(folder / "net.ckpt"), write_meta_graph=False)
    hidden = model.body(points, training=False)
    recorded: dict[str, Any] = {
        "inputs": points,
        "activations/body/dense": model.body.layers[0](points),
        "activations/body/norm": hidden,
        "outputs": model(points, training=False),
    }
    np.savez(folder / "reference.npz", **recorded)
    np.savez(folder / "of_body.npz", **{**recorded, "outputs": hidden})
    wrong = recorded["activations/body/norm"] + 1.0
    np.savez(folder / "wrong.npz", **{**recorded, "activations/body/norm": wrong, "outputs": wrong})
    return folder


def scaffolds(source: Path, file: str = "net.npz", **keys: Any) -> dict[str, ScaffoldConfig]:
    place = str(source / file)
    body = ScaffoldConfig(VariablesConfig(["body/*"], ["*seed*"]), place, **keys)
    return {"body": body, "head": ScaffoldConfig(VariablesConfig(["head/*"]), place)}


def short(folder: Path, **changes: Any) -> Runs:
    train = TrainConfig(steps=2, evaluate_every=2, checkpoint_every=2)
    return Runs(folder / "runs", train=train, **changes)


@pytest.mark.parametrize("file", FILES)
def test_a_proof_is_kept_and_the_first_values_are_derived_again(
    source: Path, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = short(tmp_path, scaffolds=scaffolds(source, file, proof=str(source / "of_body.npz")))
    reference = str(source / "reference.npz")
    lines = runs.run(proof=reference)[1]
    proofs = [line.strip() for line in lines if "agrees" in line]
    assert [line.partition(":")[0] for line in proofs] == ["proof", "proof body"]
    directory = runs.directory()
    document = json.loads(directory.provenances[0].read_text())
    assert [proof["agrees"] for proof in document["proofs"]] == [True, True]
    assert json.loads(directory.plan_json.read_text())["proofs"] == document["proofs"]
    assert proofs[0].split(": ", 1)[1] in directory.plan_html.read_text()
    restored = {n for n, v in document["variables"].items() if "first_value" in v}
    assert len(restored) == 8
    assert document == json.loads(directory.provenances[1].read_text())
    with directory.config.open("a") as config:
        config.write("other: ${run:evaluation}\n")  # As hooks may have it.
    run_command("verify", str(directory.path))
    said = capsys.readouterr().out
    assert f"{directory.path}: 8 variables derived again, bit for bit" in said
    run_command("prove", str(directory.path), reference)
    assert "proof: " in capsys.readouterr().out
    with pytest.raises(
        PlanError, match=r"first layer that differs: body/norm \(body/norm\)"
    ) as raised:
        run_command("prove", str(directory.path), str(source / "wrong.npz"))
    assert "delete the key" not in str(raised.value)


def test_a_proof_that_fails_stops_a_run_before_it_begins(source: Path, tmp_path: Path) -> None:
    runs = short(tmp_path, scaffolds=scaffolds(source, proof=str(source / "missing.npz")))
    with pytest.raises(PlanError) as raised:
        runs.run(proof=str(tmp_path / "missing.npz"))
    keys = [problem.state.partition(":")[0] for problem in raised.value.problems]
    assert keys == ["proof", "scaffolds.body.proof"]
    runs = short(tmp_path, scaffolds=scaffolds(source))
    with pytest.raises(PlanError, match=r"^proof fails: .*wrong.npz differs") as raised:
        runs.run(proof=str(source / "wrong.npz"))
    assert "delete the key: proof=null" in str(raised.value)
    runs = short(tmp_path, model={"_target_": "tests.samples.odd.plain", "_partial_": True})
    with pytest.raises(ConfigError, match="no Keras model"):
        runs.run(proof=str(source / "wrong.npz"))
    assert not runs.folder.exists()


def test_a_proof_changes_no_value_of_the_run_and_not_its_fingerprint(
    source: Path, tmp_path: Path
) -> None:
    with_proof = short(tmp_path / "a", scaffolds=scaffolds(source))
    with_proof.run(proof=str(source / "reference.npz"))
    without = short(tmp_path / "b", scaffolds=scaffolds(source))
    without.run()
    assert with_proof.record().fingerprint == without.record().fingerprint
    for name, value in with_proof.values().items():
        np.testing.assert_array_equal(value, without.values()[name], err_msg=name)


def test_verify_says_what_differs_and_what_is_lacking(source: Path, tmp_path: Path) -> None:
    own = tmp_path / "net.npz"
    own.write_bytes((source / "net.npz").read_bytes())
    runs = short(tmp_path, scaffolds=scaffolds(tmp_path))
    runs.run()
    file = runs.directory().provenances[0]
    document = json.loads(file.read_text())
    run = str(runs.directory().path)

    def with_kernel(**changes: Any) -> None:
        kernel = {**document["variables"]["body/dense/kernel"], **changes}
        variables = {**document["variables"], "body/dense/kernel": kernel}
        file.write_text(json.dumps({**document, "variables": variables}))

    with_kernel(first_value="crc32c:00000000")
    with pytest.raises(RunnerError, match="body/dense/kernel is derived with another value"):
        first_values.verify(run)
    with_kernel(first_value=None)  # As a run that ended before its first step has left it.
    with pytest.raises(RunnerError, match="the sources have the recorded digests, and there is"):
        first_values.verify(run)
    with_kernel(source_tensor={"source": "body", "tensors": ["other"]})
    with pytest.raises(RunnerError, match="body/dense/kernel is planned from other tensors"):
        first_values.verify(run)
    np.savez(own, other=np.ones(3))
    with pytest.raises(CheckpointError, match=r"scaffolds.body: .* is not the checkpoint that was"):
        first_values.verify(run)
    file.unlink()
    with pytest.raises(RunDirectoryError, match="has no record of its start"):
        first_values.verify(run)
    with pytest.raises(RunDirectoryError, match="is not a run"):
        first_values.verify(str(tmp_path))


def test_a_source_is_pinned_by_its_digest_or_the_hash_of_its_file(
    source: Path, tmp_path: Path
) -> None:
    import hashlib

    whole = hashlib.sha256((source / "net.npz").read_bytes()).hexdigest()
    runs = short(tmp_path)
    with pytest.raises(PlanError, match="is not the checkpoint that `sha256` pins") as raised:
        runs.run(scaffolds=scaffolds(source, sha256="0" * 64))
    (digest,) = raised.value.problems[0].choices
    assert digest != f"sha256:{whole}"
    for pin in (digest, whole):
        runs.run(scaffolds=scaffolds(source, sha256=pin))


def nested() -> keras.Model:
    """A recurrent layer in a functional model within another, whose variables have addresses."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Reshape((4, 2))(inputs)
    hidden = keras.layers.LSTM(3, name="memory")(hidden)
    encoder = keras.Model(inputs, hidden, name="encoder")
    return keras.Sequential([encoder, keras.layers.Dense(3, name="head")])


def torch_lstm(folder: Path) -> dict[str, ScaffoldConfig]:
    generator = np.random.default_rng(0)
    shapes = {"weight_ih": (12, 2), "weight_hh": (12, 3), "bias_ih": (12,), "bias_hh": (12,)}
    tensors: dict[str, Any] = {
        f"rnn.{name}_l0": generator.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    np.savez(folder / "lstm.npz", **tensors)
    rules = {"encoder/memory/": "rnn. | torch_lstm"}
    variables = VariablesConfig(["encoder/*"], ["*seed*"])
    return {"encoder": ScaffoldConfig(variables, str(folder / "lstm.npz"), rules=rules)}


def trained(folder: Path) -> dict[str, ScaffoldConfig]:
    model = nested()
    model.build((None, 8))
    model.compile(keras.optimizers.Adam(), "mse")
    model.fit(np.ones((4, 8), np.float32), np.ones((4, 3), np.float32), verbose=0)
    model.save(folder / "trained.keras")
    every = VariablesConfig(["*"])
    state = [StateClass.weights, StateClass.optimizer_slots]
    return {"all": ScaffoldConfig(every, str(folder / "trained.keras"), state=state)}


@pytest.mark.parametrize("form", ["keras", "weights.h5"])
def test_a_run_of_a_graph_is_derived_again_from_a_file_of_keras(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, player = str(tmp_path / f"player.{form}"), keras.Sequential([keras.Input((4,))])
    player.add(keras.layers.Dense(8, name="hidden"))
    (player.save if form == "keras" else player.save_weights)(file)
    rules = {
        f"generator/hidden/{leaf}": name
        for leaf in ("kernel", "bias")
        for name in runner.open_checkpoint(file)
        if name.endswith("01"[leaf == "bias"])
    }
    variables = VariablesConfig([*rules])
    train = TrainConfig(steps=2, evaluate_every=2, objective="validation/distance")
    runs = Runs(
        tmp_path / "runs",
        **OWN_GRAPH,
        train=train,
        graph={"_target_": "tests.samples.programs.gan"},
        scaffolds={"player": ScaffoldConfig(variables, file, rules=rules)},
    )
    runs.run()
    run_command("verify", str(runs.directory().path))
    assert "2 variables derived again, bit for bit" in capsys.readouterr().out


@pytest.mark.parametrize("sources", [torch_lstm, trained])
def test_what_layers_tell_is_recorded_for_the_derivation(
    tmp_path: Path,
    sources: Callable[[Path], dict[str, ScaffoldConfig]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = {"_target_": f"{__name__}.nested"}
    runs = short(
        tmp_path,
        model=model,
        optimizer={"_target_": "keras.optimizers.Adam"},
        scaffolds=sources(tmp_path),
    )
    runs.run()
    run_command("verify", str(runs.directory().path))
    assert "derived again, bit for bit" in capsys.readouterr().out
