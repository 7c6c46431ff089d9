from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.checkpoints.bundle import BundleReader
from runner.checkpoints.reader import TensorSpec
from runner.errors import CheckpointError


def _save(directory: Path, *, step: bool) -> str:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("b/matrix", [2, 3], tf.float32)
        tf.get_variable("a/count", [], tf.int32, tf.ones_initializer())
        if step:
            tf.get_variable("global_step", [], tf.int64, tf.constant_initializer(7))
        session.run(tf.global_variables_initializer())
        return str(tf.train.Saver().save(session, str(directory / "model.ckpt")))


def test_spec_has_every_tensor_and_the_step(tmp_path: Path) -> None:
    prefix = _save(tmp_path, step=True)
    spec = BundleReader(prefix).spec()
    assert (spec.path, spec.step) == (prefix, 7)
    assert list(spec.tensors.values()) == [
        TensorSpec("a/count", (), "int32"),
        TensorSpec("b/matrix", (2, 3), "float32"),
        TensorSpec("global_step", (), "int64"),
    ]
    assert list(spec.tensors) == ["a/count", "b/matrix", "global_step"]


def test_a_checkpoint_may_have_no_step(tmp_path: Path) -> None:
    assert BundleReader(_save(tmp_path, step=False)).spec().step is None


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    prefix = _save(tmp_path, step=True)
    Path(f"{prefix}.index").write_bytes(b"not an index")
    with pytest.raises(CheckpointError, match=r"model\.ckpt cannot be read as a TensorFlow check"):
        BundleReader(prefix).spec()


def test_a_checkpoint_without_its_data_is_refused(tmp_path: Path) -> None:
    prefix = _save(tmp_path, step=True)
    (data,) = tmp_path.glob("*.data-*")
    data.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        BundleReader(prefix).spec()


def test_reading_changes_no_file(tmp_path: Path) -> None:
    prefix = _save(tmp_path, step=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    BundleReader(prefix).spec()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
