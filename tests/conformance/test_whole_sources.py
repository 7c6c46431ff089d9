"""A source is read whole, or not at all: one thing that a file says is changed.

The variable then has the right value, or the warm start is refused; it never has another value.
"""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import msgpack
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from numpy.typing import NDArray

import runner
from runner.errors import CheckpointError, PlanError
from tests.conformance.goldens import save_npz
from tests.support.torch_files import Class, Pickled, Storage, save, save_legacy, tensor

DATA = Path(__file__).parents[1] / "data"
VALUE = np.arange(6, dtype=np.float32).reshape(2, 3) + 0.5
# Writes a file in an empty folder, and returns its path, and the tensor's name.
Write = Callable[[Path], tuple[object, str]]
CASES: dict[str, tuple[Write, str]] = {}


def case(refused: str = "") -> Callable[[Write], Write]:
    """Registers a file whose tensor is `VALUE`, or which is refused with these words."""

    def register(write: Write) -> Write:
        CASES[write.__name__] = write, refused
        return write

    return register


@pytest.mark.parametrize("name", CASES)
def test_a_changed_file_is_read_right_or_refused(name: str, tmp_path: Path) -> None:
    write, refused = CASES[name]
    path, tensor_name = write(tmp_path)
    variable = tf.Variable(np.full(VALUE.shape, 99, np.float32))
    scaffold = {"variables": {"include": ["w"]}, "checkpoint": str(path), "cast": True}
    scaffolds = {"net": {**scaffold, "rename": {"w": tensor_name}}}
    if refused:
        with pytest.raises((CheckpointError, PlanError), match=refused):
            runner.warm_start({"w": variable}, scaffolds)
        np.testing.assert_array_equal(variable.numpy(), 99)
    else:
        runner.warm_start({"w": variable}, scaffolds)
        np.testing.assert_allclose(variable.numpy(), VALUE, rtol=1e-2)


# NumPy


@case()
def npy_in_fortran_order(folder: Path) -> tuple[object, str]:
    np.save(folder / "w.npy", np.asfortranarray(VALUE))
    assert b"'fortran_order': True" in (folder / "w.npy").read_bytes()
    return folder / "w.npy", "w"


@case()
def npy_of_another_byte_order(folder: Path) -> tuple[object, str]:
    np.save(folder / "w.npy", VALUE.astype(">f4"))
    return folder / "w.npy", "w"


@case()
def npz_in_fortran_order_and_another_byte_order(folder: Path) -> tuple[object, str]:
    np.savez(folder / "w.npz", w=np.asfortranarray(VALUE.astype(">f8")))
    return folder / "w.npz", "w"


@case("two arrays of one name")
def npz_with_a_name_twice(folder: Path) -> tuple[object, str]:
    np.savez(folder / "w.npz", w=VALUE)
    np.save(folder / "w.npy", VALUE + 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        with zipfile.ZipFile(folder / "w.npz", "a") as archive:
            archive.write(folder / "w.npy", "w.npy")
    return folder / "w.npz", "w"


@case("do not convert into each other")
def npz_of_times(folder: Path) -> tuple[object, str]:
    np.savez(folder / "w.npz", w=VALUE.astype("timedelta64[s]"))
    return folder / "w.npz", "w"


@case("complex values have no place in float32")
def npz_of_complex_numbers(folder: Path) -> tuple[object, str]:
    np.savez(folder / "w.npz", w=VALUE + 1j)
    return folder / "w.npz", "w"


@case("its tensor is int16")
def npy_of_integers(folder: Path) -> tuple[object, str]:
    np.save(folder / "w.npy", (VALUE * 2).astype(np.int16))
    return folder / "w.npy", "w"


# safetensors


def _safetensors(folder: Path, dtype: str, data: bytes) -> tuple[object, str]:
    entry = {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": entry}).encode()
    path = folder / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path, "w"


@case()
def safetensors_of_bfloat16(folder: Path) -> tuple[object, str]:
    return _safetensors(folder, "BF16", VALUE.astype(ml_dtypes.bfloat16).tobytes())


@case("F4 of safetensors and float32 do not convert")
def safetensors_of_4_bits(folder: Path) -> tuple[object, str]:
    return _safetensors(folder, "F4", bytes(3))


@case("f8_e8m0 and float32 do not convert")
def safetensors_of_exponents(folder: Path) -> tuple[object, str]:
    return _safetensors(folder, "F8_E8M0", bytes(6))


@case("w is quantized")
def safetensors_with_a_scale(folder: Path) -> tuple[object, str]:
    codes = VALUE.astype(ml_dtypes.float8_e4m3fn)
    tensors = {"w": codes, "w_scale_inv": np.ones((1, 1), np.float32)}
    safetensors.numpy.save_file(tensors, folder / "w.safetensors")
    return folder / "w.safetensors", "w"


@case()
def safetensors_of_pytorch(folder: Path) -> tuple[object, str]:
    path = folder / "w.safetensors"
    safetensors.numpy.save_file({"w": VALUE}, path, metadata={"format": "pt", "title": "a net"})
    return path, "w"


@case("its format is 'mlx', whose layouts are not known")
def safetensors_of_another_library(folder: Path) -> tuple[object, str]:
    path = folder / "w.safetensors"
    safetensors.numpy.save_file({"w": VALUE}, path, metadata={"format": "mlx"})
    return path, "w"


@case("w has an unknown setting 'scale'")
def safetensors_with_an_unknown_setting(folder: Path) -> tuple[object, str]:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], "scale": 2}
    header = json.dumps({"w": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + VALUE.tobytes()
    (folder / "w.safetensors").write_bytes(content)
    return folder / "w.safetensors", "w"


@case("lacks 1 of its 1 shards")
def shards_that_are_not_there(folder: Path) -> tuple[object, str]:
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json", "w"


@case("list different tensors")
def shards_with_a_tensor_that_the_index_lacks(folder: Path) -> tuple[object, str]:
    safetensors.numpy.save_file({"w": VALUE, "v": VALUE}, folder / "a.safetensors")
    index = {"weight_map": {"w": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json", "w"


# PyTorch


def _torch(folder: Path, data: NDArray[Any], *, byteorder: bytes | None = None) -> Path:
    strides = tuple(stride // data.itemsize for stride in data.strides)
    view = tensor(Storage(count=data.size), shape=data.shape, strides=strides)
    save(folder / "w.pt", {"w": view}, {"0": data.tobytes("A")})
    if byteorder is not None:
        with zipfile.ZipFile(folder / "w.pt", "a") as archive:
            archive.writestr("m/byteorder", byteorder)
    return folder / "w.pt"


@case()
def torch_of_big_endian(folder: Path) -> tuple[object, str]:
    return _torch(folder, VALUE.astype(">f4"), byteorder=b"big"), "w"


@case("its byte order is b'BIG'")
def torch_of_a_byte_order_in_capitals(folder: Path) -> tuple[object, str]:
    return _torch(folder, VALUE.astype(">f4"), byteorder=b"BIG"), "w"


@case(r"its byte order is b'big\\n'")
def torch_of_a_byte_order_with_a_line_end(folder: Path) -> tuple[object, str]:
    return _torch(folder, VALUE.astype(">f4"), byteorder=b"big\n"), "w"


@case()
def torch_transposed(folder: Path) -> tuple[object, str]:
    return _torch(folder, np.asfortranarray(VALUE)), "w"


def _torch_with(folder: Path, value: Any, data: bytes) -> tuple[object, str]:
    return save(folder / "w.pt", {"w": value}, {"0": data}), "w"


def _with_settings(kind: str, settings: dict[str, Any]) -> Pickled:
    view = Storage(kind=kind, count=6)
    name = "torch._utils._rebuild_tensor_v2"
    return Pickled(name, view, 0, (2, 3), (3, 1), False, {}, settings)


@case()
def torch_of_negative_numbers(folder: Path) -> tuple[object, str]:
    value = _with_settings("FloatStorage", {"neg": True})
    return _torch_with(folder, value, (-VALUE).tobytes())


@case("complex values have no place in float32")
def torch_of_conjugates(folder: Path) -> tuple[object, str]:
    value = _with_settings("ComplexFloatStorage", {"conj": True})
    return _torch_with(folder, value, (VALUE + 1j).astype(np.complex64).tobytes())


@case("unknown settings of PyTorch and float32 do not convert")
def torch_of_unknown_settings(folder: Path) -> tuple[object, str]:
    return _torch_with(folder, _with_settings("FloatStorage", {"log": True}), VALUE.tobytes())


@case("qtensor of PyTorch and float32 do not convert")
def torch_of_quantized_numbers(folder: Path) -> tuple[object, str]:
    view = Storage(kind="QInt8Storage", count=6)
    value = Pickled("torch._utils._rebuild_qtensor", view, 0, (2, 3), (3, 1), (0.5, 0), False, {})
    return _torch_with(folder, value, bytes(6))


@case("sparse_tensor of PyTorch and float32 do not convert")
def torch_of_sparse_numbers(folder: Path) -> tuple[object, str]:
    return _torch_with(folder, Pickled("torch._utils._rebuild_sparse_tensor", 0, ()), bytes(24))


@case("array of NumPy and float32 do not convert")
def torch_of_an_array_beside_a_tensor(folder: Path) -> tuple[object, str]:
    array = Pickled("numpy._core.multiarray._reconstruct", "numpy", (0,), "b")
    view = tensor(Storage(count=6), shape=(2, 3), strides=(3, 1))
    return save(folder / "w.pt", {"v": view, "w": array}, {"0": VALUE.tobytes()}), "w"


@case("Scaled of PyTorch and float32 do not convert")
def torch_of_another_class_with_settings(folder: Path) -> tuple[object, str]:
    view: Any = (Storage(count=6), 0, (2, 3), (3, 1), False, {})
    function, kind = Class("torch._utils._rebuild_tensor_v2"), Class("mine.Scaled")
    name = "torch._tensor._rebuild_from_type_v2"
    return _torch_with(folder, Pickled(name, function, kind, view, {"scale": 3}), VALUE.tobytes())


@case("extra state of PyTorch and float32 do not convert")
def torch_of_extra_state(folder: Path) -> tuple[object, str]:
    state = {"w": tensor(Storage(count=6), shape=(2, 3), strides=(3, 1)), "_extra_state": {"a": 3}}
    return save(folder / "w.pt", state, {"0": VALUE.tobytes()}), "_extra_state"


@case("extra state of PyTorch and float32 do not convert")
def torch_of_extra_state_in_bytes(folder: Path) -> tuple[object, str]:
    """As Transformer Engine saves the scales of its float8 weights."""
    state = {"l.w": tensor(Storage(count=6), shape=(2, 3), strides=(3, 1))}
    state["l._extra_state"] = Pickled("_io.BytesIO", "scales")
    return save(folder / "w.pt", state, {"0": VALUE.tobytes()}), "l._extra_state"


@case()
def torch_of_a_mapping_of_extra_state(folder: Path) -> tuple[object, str]:
    """`_extra_state` is a whole name."""
    view = tensor(Storage(count=6), shape=(2, 3), strides=(3, 1))
    path = save(folder / "w.pt", {"my_extra_state": {"w": view}}, {"0": VALUE.tobytes()})
    return path, "my_extra_state.w"


@case("it does not say its byte order")
def torch_of_old_without_a_byte_order(folder: Path) -> tuple[object, str]:
    path = folder / "w.pt"
    save_legacy(path, {"w": tensor(Storage(count=6), shape=(2, 3), strides=(3, 1))}, {"0": VALUE})
    path.write_bytes(path.read_bytes().replace(b"little_endian", b"litle_endians"))
    return path, "w"


# HDF5


def _hdf5(folder: Path, data: NDArray[Any], **attributes: object) -> tuple[object, str]:
    with h5py.File(folder / "w.h5", "w") as file:
        file["w"] = data
        file["w"].attrs.update(attributes)
    return folder / "w.h5", "w"


@case()
def hdf5_of_another_byte_order(folder: Path) -> tuple[object, str]:
    return _hdf5(folder, VALUE.astype(">f8"), units="m")


@case()
def hdf5_of_bfloat16(folder: Path) -> tuple[object, str]:
    data = VALUE.astype(ml_dtypes.bfloat16).view("V2")
    return _hdf5(folder, data, dtype="bfloat16")


@case("float16 of Keras and float32 do not convert")
def hdf5_of_other_opaque_numbers(folder: Path) -> tuple[object, str]:
    return _hdf5(folder, VALUE.astype(np.float16).view("V2"), dtype="float16")


@case("uint16 for bfloat16 of Keras and float32 do not convert")
def hdf5_of_bfloat16_as_integers(folder: Path) -> tuple[object, str]:
    data = VALUE.astype(ml_dtypes.bfloat16).view(np.uint16)
    return _hdf5(folder, data, dtype="bfloat16")


@case("/w is packed: it has scale_factor")
def hdf5_of_scaled_floats(folder: Path) -> tuple[object, str]:
    return _hdf5(folder, VALUE * 2, scale_factor=0.5)


@case("/w is packed: it has _FillValue")
def hdf5_of_masked_floats(folder: Path) -> tuple[object, str]:
    return _hdf5(folder, VALUE, _FillValue=np.float32(0.5))


@case("some values of /w were never written")
def hdf5_without_a_chunk(folder: Path) -> tuple[object, str]:
    with h5py.File(folder / "w.h5", "w") as file:
        file.create_dataset("w", (2, 3), "f4", chunks=(1, 3), fillvalue=7)[0] = VALUE[0]
    return folder / "w.h5", "w"


@case("MATLAB wrote /w, whose axes are in the opposite order")
def hdf5_of_matlab(folder: Path) -> tuple[object, str]:
    return _hdf5(folder, VALUE, MATLAB_class=np.bytes_(b"single"))


@case("it lists the layer b, which is not there")
def keras_without_a_layer(folder: Path) -> tuple[object, str]:
    path, name = _keras(folder)
    with h5py.File(folder / "w.h5", "a") as file:
        file.attrs["layer_names"] = ["a", "b"]
    return path, name


@case()
def keras_with_a_weight_that_is_not_listed(folder: Path) -> tuple[object, str]:
    path, _ = _keras(folder)
    with h5py.File(folder / "w.h5", "a") as file:
        file["a/a/v:0"] = VALUE
        file["a/a/w:0"][()] = 7
    return path, "a/a/v"


@case("two datasets are named a/w: a/w:0 and a listed one")
def keras_with_another_weight_of_a_listed_name(folder: Path) -> tuple[object, str]:
    path, name = _keras(folder)
    with h5py.File(folder / "w.h5", "a") as file:
        file["a/w:0"] = VALUE + 1
    return path, name


@case()
def keras_with_a_layer_of_a_name_with_slashes(folder: Path) -> tuple[object, str]:
    with h5py.File(folder / "w.h5", "w") as file:
        file.attrs["layer_names"] = ["a/b"]
        file.create_group("a/b").attrs["weight_names"] = ["a/b/w:0"]
        file["a/b/a/b/w:0"] = VALUE
    return folder / "w.h5", "a/b/w"


def _keras(folder: Path, **attributes: str) -> tuple[object, str]:
    with h5py.File(folder / "w.h5", "w") as file:
        file.attrs.update(layer_names=["a"], **attributes)
        file.create_group("a").attrs["weight_names"] = ["a/w:0"]
        file["a/a/w:0"] = VALUE
    return folder / "w.h5", "a/w"


@case()
def keras_2(folder: Path) -> tuple[object, str]:
    return _keras(folder, keras_version="2.11.0", backend="tensorflow")


@case("Keras 1.2.2 with tensorflow wrote it")
def keras_1(folder: Path) -> tuple[object, str]:
    return _keras(folder, keras_version="1.2.2", backend="tensorflow")


@case("Keras 2.2.0 with theano wrote it")
def keras_with_theano(folder: Path) -> tuple[object, str]:
    return _keras(folder, keras_version="2.2.0", backend="theano")


@case("w/kernel, which is in CuDNN's layout")
def keras_of_cudnn(folder: Path) -> tuple[object, str]:
    tensors = {"kernel": VALUE, "recurrent_kernel": np.ones((1, 3), "f4"), "bias": np.ones(6, "f4")}
    save_npz(folder / "w.npz", **{f"w/{n}": tensors[n] for n in tensors})
    return folder / "w.npz", "w/kernel"


# MessagePack


def _msgpack(folder: Path, content: bytes) -> tuple[object, str]:
    (folder / "w.msgpack").write_bytes(content)
    return folder / "w.msgpack", "w"


def _array(value: NDArray[Any]) -> msgpack.ExtType:
    data = (value.shape, value.dtype.str.lstrip("<"), value.tobytes())
    return msgpack.ExtType(1, msgpack.packb(data))


def _chunked(**chunks: NDArray[Any]) -> bytes:
    parts = {name.lstrip("_"): _array(chunk) for name, chunk in chunks.items()}
    whole = {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 3}, "chunks": parts}
    return msgpack.packb({"w": whole})  # type: ignore[no-any-return]


@case()
def msgpack_in_chunks_out_of_order(folder: Path) -> tuple[object, str]:
    return _msgpack(folder, _chunked(_1=VALUE.ravel()[4:], _0=VALUE.ravel()[:4]))


@case("the chunks of an array have several types")
def msgpack_in_chunks_of_several_types(folder: Path) -> tuple[object, str]:
    return _msgpack(folder, _chunked(_0=VALUE.ravel()[:4], _1=np.arange(2, dtype=np.int32)))


@case("lacks some of its chunks")
def msgpack_without_a_chunk(folder: Path) -> tuple[object, str]:
    return _msgpack(folder, _chunked(_0=VALUE.ravel()[:4], _2=VALUE.ravel()[4:]))


@case("a map has two keys 'w'")
def msgpack_with_a_name_twice(folder: Path) -> tuple[object, str]:
    key, one, two = (msgpack.packb(part) for part in ("w", _array(VALUE), _array(VALUE + 1)))
    return _msgpack(folder, b"\x82" + key + one + key + two)


@case("a map has two keys '0'")
def msgpack_with_a_number_and_its_name(folder: Path) -> tuple[object, str]:
    content = {"layers": {0: _array(VALUE), "0": _array(VALUE + 1)}}
    return _msgpack(folder, msgpack.packb(content))[0], "layers/0"


@case()
def msgpack_in_a_list(folder: Path) -> tuple[object, str]:
    content = {"layers": [_array(VALUE + 1), _array(VALUE)]}
    return _msgpack(folder, msgpack.packb(content))[0], "layers/1"


@case("bytes of MessagePack and float32 do not convert")
def msgpack_of_bytes(folder: Path) -> tuple[object, str]:
    return _msgpack(folder, msgpack.packb({"w": VALUE.tobytes()}))


@case("extension 7 of MessagePack and float32 do not convert")
def msgpack_of_another_extension(folder: Path) -> tuple[object, str]:
    return _msgpack(folder, msgpack.packb({"w": msgpack.ExtType(7, VALUE.tobytes())}))


# Orbax


@case("params/Dense_0/kernel")
def orbax_without_a_chunk(folder: Path) -> tuple[object, str]:
    pytest.importorskip("tensorstore", reason="Orbax's checkpoints need the extra `orbax`")
    copy = shutil.copytree(DATA / "orbax" / "folders", folder / "copy")
    (copy / "params.Dense_0.kernel" / "0.0").unlink()
    return copy, "params/Dense_0/kernel"
