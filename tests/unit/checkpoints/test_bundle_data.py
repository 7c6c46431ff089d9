from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints import bundle_data
from runner.checkpoints.bundle import BundleReader
from runner.checkpoints.reader import Block
from runner.errors import CheckpointError


def save(path: Path, tensors: Mapping[str, Any]) -> str:
    prefix = str(path / "model")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    return prefix


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


def blocks(prefix: str, name: str, *wanted: Block | None) -> list[np.ndarray[Any, Any]] | None:
    (found,) = bundle_data.read([(bundle_data.entries(prefix)[name], wanted)])
    return found


def whole(prefix: str, name: str) -> np.ndarray[Any, Any]:
    found = blocks(prefix, name, None)
    assert found is not None
    (value,) = found
    return value


def test_the_checksums_are_computed_by_the_processor() -> None:
    # Otherwise nothing below would be shown, because TensorFlow would read everything.
    assert google_crc32c.implementation == "c"


@pytest.mark.parametrize("dtype", bundle_data._DTYPES.values())
def test_every_dtype_is_read(dtype: tf.DType, tmp_path: Path) -> None:
    values = {
        "scalar": numbers(dtype=dtype.as_numpy_dtype),
        "matrix": numbers(3, 5, dtype=dtype.as_numpy_dtype),
        "empty": numbers(0, 5, dtype=dtype.as_numpy_dtype),
    }
    prefix = save(tmp_path, values)
    for name, expected in values.items():
        value = whole(prefix, name)
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_tensors_of_several_pieces_are_read_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_data, "PIECE_BYTES", 64)
    monkeypatch.setattr(bundle_data, "_INLINE_BYTES", 50)
    values = {f"x{size}": numbers(size) for size in (1, 15, 16, 17, 300, 3)}
    prefix = save(tmp_path, values)
    entries = bundle_data.entries(prefix)
    names = ["x300", "x1", "x17", "x16", "x15", "x3", "x300"]
    found = list(bundle_data.read([(entries[name], [None]) for name in names]))
    for name, value in zip(names, found, strict=True):
        assert value is not None
        np.testing.assert_array_equal(value[0], values[name])


@pytest.mark.parametrize("piece", [8, 100, 1 << 20])
@pytest.mark.parametrize(
    "wanted",
    [
        [((0, 0), (2, 3))],
        [((7, 0), (3, 3))],
        [((5, 0), (2, 3)), ((0, 0), (2, 3))],
        [((0, 0), (4, 3)), ((4, 0), (6, 3))],
        [((3, 0), (0, 3)), ((3, 0), (2, 3))],
        [((0, 0), (4, 3)), ((3, 0), (2, 3))],
        [((1, 1), (4, 2))],
        [((1, 1), (4, 2)), None],
        [None, None],
    ],
)
def test_blocks_are_read_into_memory_of_their_own(
    wanted: Sequence[Block | None], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_data, "PIECE_BYTES", piece)
    monkeypatch.setattr(bundle_data, "_INLINE_BYTES", 32)
    table = numbers(10, 3)
    found = blocks(save(tmp_path, {"before": numbers(7), "x": table}), "x", *wanted)
    assert found is not None
    for block, value in zip(wanted, found, strict=True):
        at, size = block or ((0, 0), (10, 3))
        expected = table[at[0] : at[0] + size[0], at[1] : at[1] + size[1]]
        np.testing.assert_array_equal(value, expected)
        assert value.flags.writeable
    for number, one in enumerate(found):
        assert not any(np.shares_memory(one, other) for other in found[number + 1 :])


def test_rows_do_not_take_the_memory_of_the_whole(tmp_path: Path) -> None:
    found = blocks(save(tmp_path, {"x": numbers(1000, 3)}), "x", ((20, 0), (2, 3)))
    assert found is not None
    owner: Any = found[0]
    while owner.base is not None:
        owner = owner.base
    assert owner.nbytes < 200


def test_large_memory_begins_where_a_session_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_data, "COPIED_BYTES", 0)
    values = {f"x{size}": numbers(size) for size in range(1, 20)}
    prefix = save(tmp_path, values)
    for name in values:
        found = whole(prefix, name)
        assert found.ctypes.data % 64 == 0
        assert found.flags.writeable
        np.testing.assert_array_equal(found, values[name])


@pytest.mark.parametrize("at", [0, 50, 399])
@pytest.mark.parametrize("wanted", [None, ((2, 0), (3, 10))])
def test_a_flipped_byte_is_found_wherever_it_is(
    at: int, wanted: Block | None, tmp_path: Path
) -> None:
    prefix = save(tmp_path, {"x": numbers(10, 10), "y": numbers(3)})
    data = Path(f"{prefix}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[at] ^= 1
    data.write_bytes(content)
    assert blocks(prefix, "x", wanted) is None
    assert blocks(prefix, "y", None) is not None
    with pytest.raises(CheckpointError, match=r"tensor x: .*[Cc]hecksum"):
        list(BundleReader(prefix).read_blocks([("x", [wanted])]))


def test_a_file_that_is_cut_off_or_gone_is_left_to_tensorflow(tmp_path: Path) -> None:
    prefix = save(tmp_path, {"x": numbers(10, 10)})
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-1])
    assert blocks(prefix, "x", None) is None
    data.unlink()
    assert blocks(prefix, "x", None) is None


def test_a_directory_in_place_of_the_data_is_left_to_tensorflow(tmp_path: Path) -> None:
    prefix = save(tmp_path, {"x": numbers(10, 10)})
    data = Path(f"{prefix}.data-00000-of-00001")
    data.unlink()
    data.mkdir()
    assert blocks(prefix, "x", None) is None


def test_tensors_of_several_shards_are_found(tmp_path: Path) -> None:
    values = {"a": numbers(3), "b": numbers(2, 2)}
    for name, value in values.items():
        (tmp_path / name).mkdir()
        save(tmp_path / name, {name: value})
    prefix = str(tmp_path / "merged")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / name / "model") for name in values],
        destination_prefix=prefix,
    )
    assert len(list(tmp_path.glob("merged.data-*"))) == 2
    assert len({entry.path for entry in bundle_data.entries(prefix).values()}) == 2
    for name, value in values.items():
        np.testing.assert_array_equal(whole(prefix, name), value)


def test_text_and_partitioned_variables_are_left_to_tensorflow(tmp_path: Path) -> None:
    prefix = save(tmp_path, {"text": tf.constant(["a", "bc"]), "x": numbers(2)})
    assert set(bundle_data.entries(prefix)) == {"x"}
    ((_, (text,)),) = BundleReader(prefix).read_blocks([("text", [((1,), (1,))])])
    assert list(text) == [b"bc"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        partitioner = tf.compat.v1.fixed_size_partitioner(2)
        tf.compat.v1.get_variable(
            "table", [4, 3], initializer=tf.constant_initializer(7.0), partitioner=partitioner
        )
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "parts"))
    assert not bundle_data.entries(prefix)
    wanted: list[Block | None] = [((1, 0), (2, 3)), None]
    ((_, (rows, all_rows)),) = BundleReader(prefix).read_blocks([("table", wanted)])
    np.testing.assert_array_equal(rows, np.full((2, 3), 7.0))
    np.testing.assert_array_equal(all_rows, np.full((4, 3), 7.0))
    assert not np.shares_memory(rows, all_rows)


@pytest.mark.parametrize(
    ("name", "value"), [("google_crc32c.implementation", "python"), ("sys.byteorder", "big")]
)
def test_where_tensorflow_is_faster_or_must_convert_it_reads(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = save(tmp_path, {"x": numbers(2)})
    monkeypatch.setattr(name, value)
    assert not bundle_data.entries(prefix)
    assert not bundle_data.entries("gs://bucket/model")
    ((_, found),) = BundleReader(prefix).read(["x"])
    np.testing.assert_array_equal(found, numbers(2))
