"""Predictions of a checkpoint are written as a file, whatever made its graph."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import EvaluatedSplit, Mode
from runner.config.schema import PredictConfig
from runner.errors import ConfigError, RunDirectoryError
from runner.inputs.feature_files import features_of_file
from runner.training.prediction_files import writer_of
from tests.samples.experiment import Blobs
from tests.support.configs import OWN_GRAPH, program
from tests.support.runs import Runs, short

PARAMS = {"units": 4, "learning_rate": 0.01}


def predicted(runs: Runs, **settings: Any) -> tuple[Path, str]:
    """Returns the file of predictions, and the line on the screen."""
    (line,) = runs.shown(mode=Mode.predict, predict=PredictConfig(**settings))
    return Path(line.rpartition(" to ")[2]), line


def features() -> Any:
    return np.concatenate([batch for batch, _ in Blobs().test().as_numpy_iterator()])


def expected(runs: Runs) -> Any:
    """Returns the outputs of an export, which another code computes."""
    runs.shown(mode=Mode.export)
    served = tf.saved_model.load(str(runs.directory().export)).signatures["serving_default"]
    return served(features=tf.constant(features()))["outputs"].numpy()


def test_a_split_is_predicted_into_each_format(finished: Runs, tmp_path: Path) -> None:
    outputs = expected(finished)
    path, line = predicted(finished)
    assert path == finished.directory().path / "predictions-20-test.npz"
    assert f"model.ckpt-20: {len(outputs)} predictions of outputs float32 [2] to " in line
    with np.load(path) as arrays:
        assert list(arrays) == ["outputs"]
        np.testing.assert_allclose(arrays["outputs"], outputs, rtol=1e-5)
    table, _ = predicted(finished, to=str(tmp_path / "new" / "out.csv"))
    head, *rows = csv.reader(table.read_text().splitlines())
    assert head == ["outputs_0", "outputs_1"]
    np.testing.assert_allclose(np.array(rows, np.float32), outputs, rtol=1e-5)
    with pytest.raises(RunDirectoryError, match="nothing is overwritten"):
        predicted(finished)


def test_a_table_holds_numbers_and_strings_of_any_shape(tmp_path: Path) -> None:
    batch: dict[str, Any] = {
        "word": np.array([b"a, b", "é".encode()], object),
        "count": np.array([1, 2]),
        "grid": np.array([[[0.1, 0.2]], [[0.3, 1e-9]]], np.float32),
    }
    with writer_of(tmp_path / "out.csv") as writer:
        writer.write(batch)
        writer.write(batch)
    head, *rows = csv.reader((tmp_path / "out.csv").read_text("utf-8").splitlines())
    assert head == ["word", "count", "grid_0_0", "grid_0_1"]
    assert [row[:2] for row in rows] == [["a, b", "1"], ["é", "2"]] * 2
    values = np.array([row[2:] for row in rows], np.float32)
    assert np.array_equal(values, np.tile(batch["grid"].reshape(2, 2), (2, 1)))
    wider = {**batch, "grid": np.zeros((2, 1, 3), np.float32)}

    def ragged() -> None:
        with writer_of(tmp_path / "other.csv") as writer:
            writer.write(batch)
            writer.write(wider)

    with pytest.raises(ConfigError, match="the outputs are no table"):
        ragged()
    assert not (tmp_path / "other.csv").exists()


def nothing(**arguments: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.zeros((0, 8), np.float32)).batch(4)


def test_a_file_and_other_data_are_predicted(finished: Runs, tmp_path: Path) -> None:
    outputs = expected(finished)[:5]
    np.save(tmp_path / "five.npy", features()[:5])
    np.savez(tmp_path / "five.npz", features=features()[:5])
    lines = "".join(f"{json.dumps(row.tolist())}\n" for row in features()[:5])
    (tmp_path / "five.jsonl").write_text(lines)
    for name in ("five.npy", "five.npz", "five.jsonl"):
        to = str(tmp_path / f"of-{name}.npz")
        path, _ = predicted(finished, file=str(tmp_path / name), to=to, batch_size=2)
        np.testing.assert_allclose(np.load(path)["outputs"], outputs, rtol=1e-5)
    data = {"_target_": "tests.samples.experiment.Blobs", "batch_size": 3}
    path, _ = predicted(finished, data=data, split=EvaluatedSplit.validation)
    assert path.name == "predictions-20-data.npz"
    assert len(np.load(path)["outputs"]) == sum(1 for _ in Blobs().validation().unbatch())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"file": "gone.npy"}, "gone.npy holds no features"),
        ({"file": "table.csv"}, "its suffix tells the format"),
        ({"data": {"_target_": "builtins.dict"}}, "neither a tf.data.Dataset of batches"),
        ({"data": {"_target_": f"{__name__}.nothing"}}, "no example to predict for"),
    ],
)
def test_what_cannot_be_predicted_leaves_no_file(
    finished: Runs, settings: dict[str, Any], message: str
) -> None:
    before = finished.files()
    with pytest.raises(ConfigError, match=message):
        predicted(finished, **settings)
    assert finished.files() == before


def test_features_of_a_file_have_the_names_of_its_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", left=np.ones((3, 2)), right=np.array(["a", "b", "c"]))
    batches = list(features_of_file(str(tmp_path / "two.npz"), 2).as_numpy_iterator())
    assert [batch["right"].tolist() for batch in batches] == [[b"a", b"b"], [b"c"]]
    (tmp_path / "two.jsonl").write_text('{"left": [1, 2], "right": "a"}\n' * 3)
    batch = next(features_of_file(str(tmp_path / "two.jsonl"), 2).as_numpy_iterator())
    assert batch["left"].tolist() == [[1, 2], [1, 2]]
    assert batch["right"].tolist() == [b"a", b"a"]


def test_a_model_fn_and_a_graph_predict(tmp_path: Path) -> None:
    splits = {split: {"seed": 1, "repeat": split == "train"} for split in ("train", "validation")}
    splits["test"] = {"seed": 2, "count": 9, "repeat": False}
    runs = Runs(tmp_path / "fn", **program("lstm", "counting", PARAMS, **splits))
    runs.changes["train"] = short(steps=2)
    runs.run()
    path, line = predicted(runs)
    assert {len(array) for array in np.load(path).values()} == {9}, line

    graph = {"_target_": "tests.samples.programs.gan"}
    train = short(steps=2, objective="validation/distance")
    runs = Runs(tmp_path / "graph", **OWN_GRAPH, graph=graph, train=train)
    runs.run()
    np.save(tmp_path / "noise.npy", np.ones((3, 4), np.float32))
    path, _ = predicted(runs, file=str(tmp_path / "noise.npy"))
    assert np.load(path)["point"].shape == (3, 1)
    with pytest.raises(ConfigError, match="has no features of the test split"):
        predicted(runs)
