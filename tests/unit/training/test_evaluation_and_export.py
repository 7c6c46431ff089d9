"""The best checkpoint of a finished run is evaluated and exported."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from mlflow import MlflowClient

from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.config.choices import EvaluatedSplit, Mode
from runner.config.schema import (
    EvaluateConfig,
    ExportConfig,
    ScaffoldConfig,
    TrackingConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    PlanError,
    RunDirectoryError,
)
from runner.graph import keras_graph
from runner.graph.serving import first_example, named
from runner.runs.provenance import provenance_of
from runner.runs.run_directory import RunDirectory
from runner.system.signals import Interruption
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from runner.training.export import exported_model
from tests.samples.experiment import Blobs
from tests.samples.odd import Structured
from tests.support.runs import Runs, short, warm


def _outputs(directory: RunDirectory, features: np.ndarray) -> np.ndarray:
    """Computes with the values of the best checkpoint, in NumPy, what the tiny net computes."""
    reader = tf.train.load_checkpoint(str(directory.best))

    def get(name: str) -> np.ndarray:
        return np.asarray(reader.get_tensor(name))

    hidden = features @ get("body/dense/kernel") + get("body/dense/bias")
    scale = get("body/norm/gamma") / np.sqrt(get("body/norm/moving_variance") + 1e-3)
    hidden = (hidden - get("body/norm/moving_mean")) * scale + get("body/norm/beta")
    return np.asarray(hidden @ get("head/kernel") + get("head/bias"))


def _examples(dataset: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    batches = zip(*dataset.as_numpy_iterator(), strict=True)
    features, labels = (np.concatenate(batch) for batch in batches)
    return features, labels


def _example(data: Any) -> dict[str, Any]:
    with tf.Graph().as_default():
        batches = tf.compat.v1.data.make_initializable_iterator(data.test())
        return first_example(batches.get_next()[0], batches.initializer)


def _losses(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    chosen = outputs[np.arange(len(labels)), labels]
    return np.asarray(np.log(np.exp(outputs).sum(axis=1)) - chosen)


def test_the_best_checkpoint_of_the_newest_finished_run_is_evaluated_on_the_test_split(
    finished: Runs,
) -> None:
    # All paths inside a run directory are relative: it may be moved.
    shutil.copytree(finished.directory().path, finished.directory(2).path)
    before = finished.files()
    features, labels = _examples(Blobs().test())
    outputs = _outputs(finished.directory(), features)
    accuracy = (outputs.argmax(axis=1) == labels).mean()
    objective, (line,) = finished.run(mode=Mode.evaluate)
    assert objective == pytest.approx(_losses(outputs, labels).mean(), rel=1e-5)
    assert line.startswith(f"{finished.directory(2).best}/model.ckpt-20: test  loss ")
    assert f"accuracy {accuracy:.4g}" in line
    # Of training data that repeat, as many examples as the data say there are: each once.
    features, labels = _examples(Blobs(batch_size=64).train().take(1))
    train = EvaluateConfig(split=EvaluatedSplit.train)
    objective, (line,) = finished.run(mode=Mode.evaluate, evaluate=train)
    outputs = _outputs(finished.directory(), features)
    assert objective == pytest.approx(_losses(outputs, labels).mean(), rel=1e-5)
    assert finished.files() == before, "nothing changes"


def test_an_export_is_served_with_the_same_outputs_for_any_batch_size(
    finished: Runs, whole: Runs, tmp_path: Path
) -> None:
    directory = finished.directory()
    # The run is recorded in a store that is away: its journal is there, undelivered.
    tracking = TrackingConfig(uri=f"sqlite:///{tmp_path}/away.db")
    TrackingDirectory(directory.path).write_identity(RunIdentity("uid", "tiny", "tiny 001"))
    screen = "\n".join(finished.shown(mode=Mode.export, tracking=tracking))
    assert f"exported to {directory.export}" in screen
    assert "the model is not kept with the run: the model of" in screen
    assert not (tmp_path / "away.db").exists()

    served = tf.saved_model.load(str(directory.export)).signatures["serving_default"]
    features, _ = _examples(Blobs().test())
    for count in (1, 20):
        outputs = served(features=tf.constant(features[:count]))["outputs"].numpy()
        np.testing.assert_allclose(outputs, _outputs(directory, features[:count]), rtol=1e-4)
    model = exported_model(directory.export, 20, _example(Blobs()))
    assert (model.folder, model.step) == (directory.export, 20)
    fields = [(each.name, each.dtype.name, each.shape) for each in (*model.inputs, *model.outputs)]
    assert fields == [("features", "float32", (-1, 8)), ("outputs", "float32", (-1, 2))]
    assert (model.example["features"] == features[:1]).all()

    spec = open_reader(str(directory.export)).spec()
    kept = open_reader(checkpoint_paths(str(directory.best))[0]).spec().tensors
    for name in ("body/dense/kernel", "body/norm/moving_mean", "head/bias"):
        tensor = spec.find(name)
        assert tensor is not None
        assert tensor.shape == kept[name].shape, "as in checkpoints"
    assert sum(tensor.bytes for tensor in spec.tensors.values()) < 8 * 4 * 4 + 4 * 2 * 4 + 200

    beside = (directory.best / "provenance.json").read_bytes()
    assert (directory.export / "provenance.json").read_bytes() == beside
    shutil.copytree(directory.export, tmp_path / "elsewhere")
    found = provenance_of(str(tmp_path / "elsewhere"))
    assert found is not None
    assert found["run"]["run_dir"] == str(whole.directory().path)

    files = finished.files()
    screen = "\n".join(finished.shown(mode=Mode.export, tracking=tracking))
    assert f"is exported already, to {directory.export}" in screen
    assert "the model is not kept with the run: the model of" in screen, "it is tried again"
    assert finished.files() == files


def test_structures_are_exported_under_their_keys_by_which_mlflow_predicts(
    runs: Runs, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"data": "Structured", "model": "OfStructure", "loss": "StructuredLoss"}
    runs.changes = {key: {"_target_": f"tests.samples.odd.{name}"} for key, name in parts.items()}
    runs.changes |= {"metrics": {}, "train": TrainConfig(steps=2)}
    runs.run()
    runs.shown(mode=Mode.export)
    served = tf.saved_model.load(str(runs.directory().export)).signatures["serving_default"]
    one = np.ones([3, 1], np.float32)
    assert set(served.structured_input_signature[1]) == {"left", "right"}
    model = exported_model(runs.directory().export, 2, _example(Structured()))
    assert model.example.keys() == {"left", "right"}
    uri = f"sqlite:///{database}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    kept = MlflowStore(uri).keep_model(run_id, model)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    predicted = mlflow.pyfunc.load_model(kept).predict({"left": one * 0, "right": one * 7})
    assert np.ravel(predicted["sum"]).tolist() == [7.0] * 3


NAMES: list[tuple[Any, set[str]]] = [
    (1, {"features"}),
    ((1,), {"features"}),
    ((1, {"a": 2}), {"features_0", "features_1_a"}),
    ({"image": 1, "prefix": 2}, {"image", "prefix"}),
    ({"image": 1}, {"image"}),
    ({"a": {"b": 1}, "c": [2, 3]}, {"a_b", "c_0", "c_1"}),
    ({"a": {"b": 1}, "a_b": 2}, {"features_0", "features_1"}),
]


@pytest.mark.parametrize(("structure", "names"), NAMES)
def test_the_names_of_features(structure: Any, names: set[str]) -> None:
    assert named("features", structure).keys() == names


def arrays_of(export: Path) -> dict[str, np.ndarray]:
    """Returns tensor -> value of an exported SavedModel."""
    reader = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    names = (name for name in reader.get_variable_to_shape_map() if "VARIABLE_VALUE" in name)
    return {name: reader.get_tensor(name) for name in names}


def _shown(lines: list[str]) -> str:
    return next(line for line in lines if "  loss " in line).partition(": ")[2]


def test_any_checkpoint_is_evaluated_on_the_split_that_is_chosen(finished: Runs) -> None:
    validation = EvaluatedSplit.validation
    for which, place in (
        ("10", "checkpoints/model.ckpt-10"),
        ("latest", "checkpoints/model.ckpt-20"),
    ):
        chosen = EvaluateConfig(which, validation)
        (line,) = finished.shown(mode=Mode.evaluate, evaluate=chosen)
        assert line.startswith(f"{finished.directory().path / place}: validation  loss ")
    # By its folder any run will do, whatever its status and its configuration.
    finished.directory().update(status="KILLED", fingerprint="f" * 16)
    run_dir = str(finished.directory().path)
    (again,) = finished.shown(
        mode=Mode.evaluate, evaluate=chosen, run_dir=run_dir, from_run_dir=True
    )
    assert again == line
    with pytest.raises(CheckpointError, match="no checkpoint of step 7"):
        finished.shown(
            mode=Mode.evaluate, evaluate=EvaluateConfig("7"), run_dir=run_dir, from_run_dir=True
        )
    for folder in ("checkpoints", "best"):
        shutil.rmtree(finished.directory().path / folder)
    with pytest.raises(RunDirectoryError, match="has no checkpoint\n  cause: the run is KILLED"):
        finished.shown(mode=Mode.evaluate, evaluate=chosen, run_dir=run_dir, from_run_dir=True)


def test_what_was_built_while_a_signal_was_swallowed_is_not_used(
    finished: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AutoGraph and Keras swallow errors, and the graph they go on to build is another one."""
    make = keras_graph.KerasGraph.save

    def interrupted(*arguments: Any) -> Any:
        with suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)
        return make(*arguments)

    monkeypatch.setattr(keras_graph.KerasGraph, "save", interrupted)
    with pytest.raises(InterruptedRunError), Interruption().handled():
        finished.shown(mode=Mode.export)
    assert not finished.directory().export.exists()


def test_an_export_of_another_step_is_neither_replaced_nor_registered_as_this_one(
    finished: Runs,
) -> None:
    directory = finished.directory()
    finished.shown(mode=Mode.export, export=ExportConfig("10"))
    folder = directory.path / "export-10"
    assert (folder / "assets.extra" / "step").read_text() == "10\n"
    folder.rename(directory.export)  # As if the run had been extended since.
    register, tracking = ExportConfig(register="net"), TrackingConfig("sqlite:///x.db")
    with pytest.raises(RunDirectoryError, match=r"and it is of step 10\n.*to export step 20"):
        finished.shown(mode=Mode.export, export=register, tracking=tracking)


def test_values_are_exported_under_the_names_of_a_scaffolds_checkpoint(
    plain: Runs, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"fc.weight": (2, 4), "fc.bias": (2,), "steps": ()}
    source = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(source, tmp_path / "torch.safetensors")
    scaffold = ScaffoldConfig(
        VariablesConfig(["head/*"]),
        str(tmp_path / "torch.safetensors"),
        rules={"head/": "fc. | torch"},
    )
    given: dict[str, Any] = {"scaffolds": {"head": scaffold}, "name": "back"}
    for which, folder in (("scaffolds", "export-scaffolds-head"), ("best", "001/export-head")):
        if which == "best":
            plain.run(**given, train=short(steps=2))
        export = ExportConfig(which, names="head")
        lines = plain.shown(**given, train=short(steps=2), mode=Mode.export, export=export)
        assert f"exported under the names of head to {plain.folder / folder}" in lines[-1]
        back = safetensors.numpy.load_file(plain.folder / folder / "model.safetensors")
        assert back.keys() == source.keys()
        assert back["steps"] == source["steps"]
        if which == "best":
            reader = tf.train.load_checkpoint(str(plain.directory().best))
            np.testing.assert_array_equal(back["fc.weight"], reader.get_tensor("head/kernel").T)
            assert (back["fc.weight"] != source["fc.weight"]).all()
        else:
            np.testing.assert_array_equal(back["fc.weight"], source["fc.weight"])
    wrong = ExportConfig(names="body")
    with pytest.raises(ConfigError, match=r"export\.names=body names no scaffold\n.*\n.*head"):
        plain.shown(**given, train=short(steps=2), mode=Mode.export, export=wrong)


def test_the_scaffolds_checkpoints_are_evaluated_and_exported_without_a_run(
    plain: Runs, tmp_path: Path
) -> None:
    """All of the model comes from a checkpoint, so that it is that checkpoint's model."""
    trained = Runs(tmp_path / "source", **plain.changes)
    trained.run(train=short(steps=2))
    source = trained.directory()
    expected = trained.shown(mode=Mode.evaluate, train=short(steps=2))
    scaffolds = {"all": ScaffoldConfig(VariablesConfig(["*"]), str(source.checkpoints))}
    given: dict[str, Any] = {
        "scaffolds": scaffolds,
        "name": "foreign",
        "train": TrainConfig(ema_decay=0.9),
    }
    start = EvaluateConfig("scaffolds")
    lines = plain.shown(**given, mode=Mode.evaluate, evaluate=start)
    assert lines[0] == "4 of 4 model variables (100 % of their bytes) from 1 checkpoint"
    assert lines[-1].startswith("the start from the scaffolds: test  loss ")
    assert _shown(lines) == _shown(expected)
    assert not plain.folder.exists()

    plain.shown(**given, mode=Mode.export, export=ExportConfig("scaffolds"))
    with pytest.raises(RunDirectoryError, match="export-scaffolds exists"):
        plain.shown(**given, mode=Mode.export, export=ExportConfig("scaffolds"))
    values = arrays_of(plain.folder / "export-scaffolds")
    reader = tf.train.load_checkpoint(str(source.checkpoints))
    kernel = next(value for value in values.values() if value.shape == (4, 2))
    assert (kernel == reader.get_tensor("head/kernel")).all()
    found = provenance_of(str(plain.folder / "export-scaffolds"))
    assert found is not None
    assert found["sources"]["all"][0]["path"] == str(source.checkpoints / "model.ckpt-2")
    with pytest.raises(PlanError, match="there is no checkpoint at"):
        plain.shown(scaffolds=warm("/nowhere"), mode=Mode.evaluate, evaluate=start)


def test_there_must_be_a_finished_run_of_this_configuration(finished: Runs) -> None:
    with pytest.raises(
        RunDirectoryError, match="001 is FINISHED after 20 steps and differs: seed: 0 -> 1"
    ) as error:
        finished.shown(mode=Mode.evaluate, seed=1)
    assert "mode=evaluate run_dir=RUN without an experiment" in str(error.value)
    finished.directory().update(status="KILLED")
    with pytest.raises(RunDirectoryError, match="001 is KILLED"):
        finished.shown(mode=Mode.export)
    shutil.rmtree(finished.folder)
    with pytest.raises(RunDirectoryError, match="it holds no run at all"):
        finished.shown(mode=Mode.export)
