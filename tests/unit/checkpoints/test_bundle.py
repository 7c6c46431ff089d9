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


def _save_parts(prefix: str, shards: int) -> None:
    """A bundle in several shards, of which each holds a tensor of 400 bytes."""
    parts = [f"{prefix}_part{shard}" for shard in range(shards)]
    for shard, part in enumerate(parts):
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=[f"tensor{shard}"],
            shape_and_slices=[""],
            tensors=[tf.ones([100])],
        )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)


def test_an_index_without_data_is_refused(tmp_path: Path) -> None:
    prefix = _save(tmp_path, step=False)
    (data,) = tmp_path.glob("*.data-*")
    data.unlink()
    with pytest.raises(CheckpointError, match=r"an index without data\n.*no .*data-00000-of-00001"):
        BundleReader(prefix).spec()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 3)
    Path(f"{prefix}.data-00001-of-00003").unlink()
    with pytest.raises(CheckpointError, match="1 of its 3 data shards are missing") as caught:
        BundleReader(prefix).spec()
    assert f"there is no {prefix}.data-00001-of-00003" in str(caught.value)


def test_a_truncated_shard_is_found_without_reading_it(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 2)
    shard = Path(f"{prefix}.data-00001-of-00002")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"its data is truncated\n.*take 800 bytes.*hold 500"):
        BundleReader(prefix).spec()


def test_a_flipped_byte_of_data_is_found(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 1)
    shard = Path(f"{prefix}.data-00000-of-00001")
    content = bytearray(shard.read_bytes())
    content[123] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tensor tensor0: .*Checksum does not match"):
        list(BundleReader(prefix).read(["tensor0"]))


def test_wildcards_in_a_path_are_explained(tmp_path: Path) -> None:
    prefix = str(tmp_path / "lr=[0.1].ckpt")
    _save_parts(prefix, 1)
    with pytest.raises(CheckpointError, match=r"TensorFlow\n.*takes \*, \? and \[ in a path"):
        BundleReader(prefix).spec()
