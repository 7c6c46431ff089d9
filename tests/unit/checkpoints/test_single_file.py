from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints.locate import resolve
from runner.checkpoints.open import open_checkpoint
from runner.checkpoints.v1_checkpoint import SingleFileReader
from runner.errors import CheckpointError


def _save(folder: Path, *, sharded: bool) -> str:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for number in range(200):
            tf.compat.v1.get_variable(f"layer_{number}/kernel", [800])
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(
            write_version=tf.compat.v1.train.SaverDef.V1, sharded=sharded
        )
        return str(saver.save(session, str(folder / "model"), 7, write_meta_graph=False))


def test_shards_are_read_by_their_pattern(tmp_path: Path) -> None:
    path = _save(tmp_path, sharded=True)
    assert "?????" in path
    assert resolve(str(tmp_path)) == [path]
    reader = open_checkpoint(path)
    spec = reader.spec()
    assert (spec.format, len(spec.tensors), spec.step) == ("TensorFlow V1 checkpoint", 200, None)
    ((_, value),) = reader.read(["layer_3/kernel"])
    assert value.shape == (800,)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = Path(_save(tmp_path, sharded=False))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow"):
        SingleFileReader(str(path)).spec()


def test_a_damaged_block_is_no_missing_tensor(tmp_path: Path) -> None:
    path = Path(_save(tmp_path, sharded=False))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    reader = SingleFileReader(str(path))
    names = list(reader.spec().tensors)
    assert len(names) == 200
    with pytest.raises(CheckpointError, match=r"tensor layer_\d+/kernel: "):
        list(reader.read(names))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow"):
        SingleFileReader(str(tmp_path / "nothing")).spec()
