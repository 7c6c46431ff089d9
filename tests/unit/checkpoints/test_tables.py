from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints.formats.bundle import BundleReader, V1Reader
from runner.checkpoints.formats.tables import require_intact
from runner.errors import CheckpointError
from tests.conformance.goldens import save_bundle
from tests.support.tables import recompressed, stored

COUNT = 400
DAMAGED = r"cannot be read as a TensorFlow checkpoint\n.*checksum mismatch in the block at byte"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The index of a bundle, which has several blocks."""
    path = tmp_path_factory.mktemp("bundle") / "model"
    save_bundle(path, {f"{number:03d}{'x' * 1000}": tf.zeros([1]) for number in range(COUNT)})
    content = path.with_suffix(".index").read_bytes()
    assert len(content) > 400_000
    return content


def _bundle(index: bytes, folder: Path) -> str:
    (folder / "model.index").write_bytes(index)
    (folder / "model.data-00000-of-00001").write_bytes(bytes(4 * COUNT))
    return str(folder / "model")


def _flipped(content: bytes, position: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)


def test_intact_blocks_are_read_compressed_or_not(index: bytes, tmp_path: Path) -> None:
    compressed = recompressed(index, 1)
    assert len(compressed) < len(index) / 2
    for content in (index, compressed):
        assert len(BundleReader(_bundle(content, tmp_path)).spec().tensors) == COUNT
    with pytest.raises(CheckpointError, match=f"{DAMAGED} 0"):
        BundleReader(_bundle(_flipped(compressed, 100), tmp_path)).spec()
    with pytest.raises(CheckpointError, match="is compressed by method 2; TensorFlow reads"):
        BundleReader(_bundle(recompressed(index, 2), tmp_path)).spec()


@pytest.mark.parametrize("position", [100, 300_000, 400_000])
def test_a_damaged_block_is_found(index: bytes, position: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=DAMAGED):
        BundleReader(_bundle(_flipped(index, position), tmp_path)).spec()


def test_tensorflow_alone_would_lose_tensors_silently(index: bytes, tmp_path: Path) -> None:
    reader = tf.train.load_checkpoint(_bundle(_flipped(index, 100), tmp_path))
    assert 0 < len(reader.get_variable_to_shape_map()) < COUNT


@pytest.mark.parametrize("keep", [-1, 300_000, 100])
def test_a_truncated_index_is_found(index: bytes, keep: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not end like a table: it is cut off"):
        BundleReader(_bundle(index[:keep], tmp_path)).spec()


def _table(footer: bytes, blocks: bytes = b"") -> bytes:
    return blocks + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"anything", "too short to be a table"),
        (_table(b"\0\0\0\xff\xff\xff\x7f"), "the block at byte 0 reaches beyond the end"),
        (_table(b"\xff" * 40), "a length in the index is damaged"),
        (_table(b"\0\0\0\2", stored(b"ab")), "a block of the index is too short"),
        (_table(b"\0\0\0\2", stored(b"ab", 2)), "is compressed by method 2"),
        (_table(b"\0\0\0\x0f", stored(b"\xff" * 11 + bytes(4))), "a length in the index is"),
    ],
)
def test_damaged_footers_and_index_blocks_are_found(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.index"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        require_intact(str(path))


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A V1 checkpoint of several blocks."""
    path = tmp_path_factory.mktemp("v1") / "model"
    names = [f"layer_{number}/kernel" for number in range(200)]
    values = [tf.random.stateless_normal([800], [0, number]) for number in range(200)]
    tf.raw_ops.Save(filename=str(path), tensor_names=names, data=values)
    return path.read_bytes()


def test_damage_at_either_end_of_a_v1_file_is_refused(v1: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow V1 checkpoint"):
        V1Reader(str(path)).spec()
    for position, cause in ((-60, "checksum mismatch in the block"), (10, "")):
        path.write_bytes(_flipped(v1, position))
        with pytest.raises(CheckpointError, match=f"as a TensorFlow V1 checkpoint\n.*{cause}"):
            V1Reader(str(path)).spec()


def test_a_damaged_block_of_a_v1_file_is_not_a_missing_tensor(v1: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(_flipped(v1, len(v1) // 2))
    reader = V1Reader(str(tmp_path / "model"))
    names = list(reader.spec().tensors)
    assert len(names) == 200
    with pytest.raises(CheckpointError, match=r"tensor layer_\d+/kernel: "):
        list(reader.read(names))
