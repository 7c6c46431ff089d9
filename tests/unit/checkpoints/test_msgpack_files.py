from __future__ import annotations

import random
from pathlib import Path

import msgpack
import numpy as np
import pytest

from runner.checkpoints.formats.msgpack_files import MsgpackReader
from runner.checkpoints.reader import parse_dtype
from runner.errors import CheckpointError

DATA = Path(__file__).parents[2] / "data" / "flax"


@pytest.mark.parametrize("name", ["whole", "chunked"])
def test_every_value_is_what_flax_saved(name: str) -> None:
    reader = MsgpackReader(str(DATA / f"{name}.msgpack"))
    tensors = reader.spec().tensors
    with np.load(DATA / f"{name}.npz") as arrays:
        expected = {
            tensor: array.view(parse_dtype(dtype))
            for (dtype, tensor), array in ((key.split(":"), array) for key, array in arrays.items())
        }
    assert set(tensors) == set(expected)
    for tensor, value in reader.read(list(tensors)):
        assert (value.dtype, value.shape) == (expected[tensor].dtype, expected[tensor].shape)
        assert value.tobytes() == expected[tensor].tobytes()


def array(shape: object, dtype: str, size: int) -> msgpack.ExtType:
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, bytes(size))))


@pytest.mark.parametrize(
    "content",
    [
        msgpack.packb({"a": array([4], "float32", 12)}),
        msgpack.packb({"a": array([-1], "float32", 4)}),
        msgpack.packb({"a": array([2**40, 2**40], "float32", 16)}),
        msgpack.packb({"a": array([2], "object", 16)}),
        msgpack.packb({"a": {"b": array([1], "float32", 4)}, "a/b": array([1], "float32", 4)}),
        msgpack.packb({"a": array("xy", "float32", 16)}),
        msgpack.packb({"a": {"__msgpack_chunked_array__": True, "shape": {}, "chunks": {}}}),
        msgpack.packb({"a": 1})[:-1],
        msgpack.packb({"a": 1}) + b"\x00",
        msgpack.packb([1]),
        b"\x81\xa1a" * 100_000,
        b"\x81\xa1a\xdd\xff\xff\xff\xff" + bytes(4_000_000),
        b"\x81\xa1a\xc6\xff\xff\xff\xffx",
        b"\x81\xa1a\xc1",
    ],
)
def test_hostile_files_are_errors_that_name_the_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.msgpack"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        MsgpackReader(str(path)).spec()


def test_damaged_files_are_errors_or_read(tmp_path: Path) -> None:
    content = (DATA / "chunked.msgpack").read_bytes()
    path = tmp_path / "damaged.msgpack"
    draw = random.Random(5)
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(bytes(damaged[: draw.choice([None, draw.randrange(1, len(damaged))])]))
        try:
            reader = MsgpackReader(str(path))
            sizes = [value.nbytes for _, value in reader.read(list(reader.spec().tensors))]
            message = str(path)
        except CheckpointError as error:
            sizes, message = [], str(error)
        assert max(sizes, default=0) < 1 << 20
        assert str(path) in message
