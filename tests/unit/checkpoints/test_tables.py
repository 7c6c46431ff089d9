from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints.bundle import BundleReader, V1Reader
from runner.checkpoints.tables import require_index_block, require_intact
from runner.errors import CheckpointError
from tests.tiny.tables import recompressed, stored

COUNT = 12_000


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bundle whose index has several blocks."""
    path = str(tmp_path_factory.mktemp("bundle") / "model.ckpt")
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=[f"some/layer/of/a/long/name_{number}/kernel" for number in range(COUNT)],
        shape_and_slices=[""] * COUNT,
        tensors=[tf.zeros([1])] * COUNT,
    )
    assert Path(f"{path}.index").stat().st_size > 300_000
    return path


def _changed(prefix: str, index: bytes, folder: Path) -> str:
    (folder / "model.ckpt.index").write_bytes(index)
    data = "model.ckpt.data-00000-of-00001"
    (folder / data).write_bytes((Path(prefix).parent / data).read_bytes())
    return str(folder / "model.ckpt")


def _flipped(prefix: str, position: int, folder: Path) -> str:
    content = bytearray(Path(f"{prefix}.index").read_bytes())
    content[position] ^= 1
    return _changed(prefix, bytes(content), folder)


def test_an_intact_index_passes(prefix: str) -> None:
    require_intact(f"{prefix}.index")
    assert len(BundleReader(prefix).spec().tensors) == COUNT


def test_compressed_blocks_are_read(prefix: str, tmp_path: Path) -> None:
    index = Path(f"{prefix}.index").read_bytes()
    compressed = recompressed(index, 1)
    assert len(compressed) < len(index) / 2
    path = Path(_changed(prefix, compressed, tmp_path))
    assert len(BundleReader(str(path)).spec().tensors) == COUNT
    damaged = bytearray(compressed)
    damaged[100] ^= 1
    with pytest.raises(CheckpointError, match="checksum mismatch in the block at byte 0"):
        BundleReader(_changed(prefix, bytes(damaged), tmp_path)).spec()


def test_blocks_that_tensorflow_does_not_read_are_refused(prefix: str, tmp_path: Path) -> None:
    other = recompressed(Path(f"{prefix}.index").read_bytes(), 2)
    with pytest.raises(CheckpointError, match="is compressed by method 2; TensorFlow reads"):
        BundleReader(_changed(prefix, other, tmp_path)).spec()


@pytest.mark.parametrize("position", [100, 200_000, 300_000])
def test_a_damaged_block_is_found(prefix: str, position: int, tmp_path: Path) -> None:
    path = _flipped(prefix, position, tmp_path)
    with pytest.raises(ValueError, match="checksum mismatch in the block at byte"):
        require_intact(f"{path}.index")
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow checkpoint"):
        BundleReader(path).spec()


def test_tensorflow_alone_would_lose_tensors_silently(prefix: str, tmp_path: Path) -> None:
    reader = tf.train.load_checkpoint(_flipped(prefix, 100, tmp_path))
    assert 0 < len(reader.get_variable_to_shape_map()) < COUNT


@pytest.mark.parametrize("keep", [-1, 300_000, 100])
def test_a_truncated_index_is_found(prefix: str, keep: int, tmp_path: Path) -> None:
    path = tmp_path / "truncated.index"
    path.write_bytes(Path(f"{prefix}.index").read_bytes()[:keep])
    with pytest.raises(ValueError, match="does not end like a table: it is cut off"):
        require_intact(str(path))


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
        (
            _table(b"\0\0\0\x0f", stored(b"\xff" * 11 + bytes(4))),
            "a length in the index is damaged",
        ),
    ],
)
def test_damaged_footers_and_index_blocks_are_found(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.index"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        require_intact(str(path))


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A V1 checkpoint of several blocks."""
    names = [f"layer_{number}/kernel" for number in range(200)]
    values = [tf.random.stateless_normal([800], [0, number]) for number in range(200)]
    tf.raw_ops.Save(filename=str(tmp_path / "model"), tensor_names=names, data=values)
    return tmp_path / "model"


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_v1_file_is_checked_from_its_end(v1: Path) -> None:
    require_index_block(str(v1))
    _flip(v1, -60)
    with pytest.raises(ValueError, match="checksum mismatch"):
        require_index_block(str(v1))


def test_damage_at_the_start_of_a_v1_file_is_refused(v1: Path) -> None:
    _flip(v1, 10)
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow"):
        V1Reader(str(v1)).spec()


def test_a_damaged_block_of_a_v1_file_is_not_a_missing_tensor(v1: Path) -> None:
    _flip(v1, v1.stat().st_size // 2)
    reader = V1Reader(str(v1))
    names = list(reader.spec().tensors)
    assert len(names) == 200
    with pytest.raises(CheckpointError, match=r"tensor layer_\d+/kernel: "):
        list(reader.read(names))


def test_a_missing_v1_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read as a TensorFlow"):
        V1Reader(str(tmp_path / "nothing")).spec()
