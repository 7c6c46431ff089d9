from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from runner.checkpoints.locate import require_checkpoint
from runner.checkpoints.open import open_checkpoint
from runner.config.choices import Goal, Mode
from runner.config.schema import RunConfig, TrackingConfig, TrainConfig
from runner.console import Screen
from runner.errors import RunDirectoryError
from runner.run import run_experiment
from runner.runs.provenance import provenance_of
from runner.runs.run_directory import RunDirectory
from runner.tracking.tracking_directory import Opening, TrackingDirectory
from runner.training.run import Surroundings
from tests.tiny.configs import tiny
from tests.tiny.experiment import Blobs


class _Experiment:
    """A tiny experiment in one folder."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self._folder, self._changes = folder, changes

    def __call__(self, mode: str) -> float | None:
        self._file = io.StringIO()
        screen = Screen(Console(file=self._file, width=200, highlight=False))
        return run_experiment(self.config(Mode[mode]), Surroundings(screen=screen))

    def config(self, mode: Mode) -> RunConfig:
        return tiny(run_dir=str(self._folder), mode=mode, **self._changes)

    @property
    def screen(self) -> str:
        return self._file.getvalue()


@pytest.fixture
def experiment(tmp_path: Path) -> _Experiment:
    return _Experiment(tmp_path / "tiny")


def _outputs(directory: RunDirectory, features: np.ndarray) -> np.ndarray:
    """Computes with the values of the best checkpoint, in NumPy, what the tiny net computes."""
    reader = tf.train.load_checkpoint(str(directory.best))

    def get(name: str) -> np.ndarray:
        return np.asarray(reader.get_tensor(name))

    hidden = features @ get("body/dense/kernel") + get("body/dense/bias")
    scale = get("body/norm/gamma") / np.sqrt(get("body/norm/moving_variance") + 1e-3)
    hidden = (hidden - get("body/norm/moving_mean")) * scale + get("body/norm/beta")
    return np.asarray(hidden @ get("head/kernel") + get("head/bias"))


def _test_split() -> tuple[np.ndarray, np.ndarray]:
    batches = list(Blobs().test().as_numpy_iterator())
    features, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
    return features, labels


def test_the_best_checkpoint_is_evaluated_on_the_test_split(
    experiment: _Experiment, tmp_path: Path
) -> None:
    experiment("train")
    directory = RunDirectory(tmp_path / "tiny" / "001")
    features, labels = _test_split()
    outputs = _outputs(directory, features)
    accuracy = (outputs.argmax(axis=1) == labels).mean()
    losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(len(labels)), labels]
    assert experiment("evaluate") == pytest.approx(losses.mean(), rel=1e-5)
    assert f"accuracy {accuracy:.4g}" in experiment.screen
    assert "model.ckpt-20: test  loss" in experiment.screen


def test_the_objective_is_returned(tmp_path: Path) -> None:
    train = TrainConfig(steps=5, objective="validation/accuracy", goal=Goal.maximize)
    experiment = _Experiment(tmp_path / "tiny", train=train)
    experiment("train")
    value = experiment("evaluate")
    assert value is not None
    assert re.search(r"accuracy (\S+)", experiment.screen)[1] == f"{value:.4g}"  # type: ignore[index]


def test_evaluating_changes_nothing(experiment: _Experiment, tmp_path: Path) -> None:
    experiment("train")
    folder = tmp_path / "tiny"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    experiment("evaluate")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_an_export_is_served_with_the_same_outputs_for_any_batch_size(
    experiment: _Experiment, tmp_path: Path
) -> None:
    experiment("train")
    assert experiment("export") is None
    directory = RunDirectory(tmp_path / "tiny" / "001")
    served = tf.saved_model.load(str(directory.export)).signatures["serving_default"]
    features, _ = _test_split()
    for count in (1, 20):
        outputs = served(features=tf.constant(features[:count]))["outputs"].numpy()
        np.testing.assert_allclose(outputs, _outputs(directory, features[:count]), rtol=1e-4)
    assert f"exported to {directory.export}" in experiment.screen
    beside = (directory.best / "provenance.json").read_bytes()
    assert (directory.export / "provenance.json").read_bytes() == beside
    spec = open_checkpoint(str(directory.export)).spec()
    kept = open_checkpoint(require_checkpoint(str(directory.best))).spec().tensors
    model = {"body/dense/kernel", "body/norm/moving_mean", "head/bias"}
    assert model <= set(spec.tensors) < set(kept), "names are those of the checkpoints"
    shutil.copytree(directory.export, tmp_path / "elsewhere")
    found = provenance_of(str(tmp_path / "elsewhere"))
    assert found is not None
    assert found["run"]["run_dir"] == str(directory.path)


def test_an_export_is_not_overwritten(experiment: _Experiment) -> None:
    experiment("train")
    experiment("export")
    with pytest.raises(RunDirectoryError, match="export exists"):
        experiment("export")


def test_an_export_does_not_need_the_store_that_the_run_is_in(
    experiment: _Experiment, tmp_path: Path
) -> None:
    experiment("train")
    # Its journal is there, but nobody has delivered it.
    tracked = _Experiment(
        tmp_path / "tiny", tracking=TrackingConfig(uri=f"sqlite:///{tmp_path}/away.db")
    )
    directory = RunDirectory(tmp_path / "tiny" / "001")
    TrackingDirectory(directory.path).write_opening(Opening("uid", "tiny", "tiny 001"))
    tracked("export")
    assert directory.export.is_dir()
    assert "the model is not kept with the run: the model of" in tracked.screen
    assert not (tmp_path / "away.db").exists()


def test_structures_are_exported_under_numbered_names(tmp_path: Path) -> None:
    experiment = _Experiment(
        tmp_path / "tiny",
        data={"_target_": "tests.tiny.odd.Structured"},
        model={"_target_": "tests.tiny.odd.OfStructure"},
        loss={"_target_": "tests.tiny.odd.StructuredLoss"},
        metrics={},
    )
    experiment("train")
    experiment("export")
    directory = RunDirectory(tmp_path / "tiny" / "001")
    served = tf.saved_model.load(str(directory.export)).signatures["serving_default"]
    assert set(served.structured_input_signature[1]) == {"features_0", "features_1"}
    one = tf.ones([3, 1])
    outputs = served(features_0=one * 0, features_1=one * 7)["outputs"]
    np.testing.assert_allclose(outputs, np.full((3, 1), 7.0))


@pytest.mark.parametrize("mode", ["evaluate", "export"])
def test_there_must_be_a_finished_run(experiment: _Experiment, tmp_path: Path, mode: str) -> None:
    with pytest.raises(RunDirectoryError, match="holds no finished run") as caught:
        experiment(mode)
    assert "holds no run at all" in str(caught.value)
    experiment("train")
    RunDirectory(tmp_path / "tiny" / "001").update(status="KILLED")
    with pytest.raises(RunDirectoryError, match="001 is KILLED"):
        experiment(mode)


def test_a_run_of_another_configuration_does_not_count(
    experiment: _Experiment, tmp_path: Path
) -> None:
    experiment("train")
    with pytest.raises(RunDirectoryError, match="holds no finished run of this configuration"):
        _Experiment(tmp_path / "tiny", seed=1)("evaluate")


def test_the_newest_finished_run_is_evaluated(experiment: _Experiment, tmp_path: Path) -> None:
    experiment("train")
    experiment("train")
    experiment("evaluate")
    assert str(tmp_path / "tiny" / "002" / "best") in experiment.screen
    assert json.loads((tmp_path / "tiny" / "002" / "run.json").read_text())["status"] == "FINISHED"


def test_a_run_that_was_moved_is_still_found(experiment: _Experiment, tmp_path: Path) -> None:
    """Paths inside a run directory are relative."""
    experiment("train")
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")
    moved = _Experiment(tmp_path / "elsewhere")
    moved("evaluate")
    assert str(tmp_path / "elsewhere" / "001" / "best" / "model.ckpt") in moved.screen
