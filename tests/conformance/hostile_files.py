"""Makes hostile and odd files and opens each in a process with little memory and time.

Run as a module with a folder and names of files (by default all), it prints a line for each file:
its name, `listed`, `refused` or `wrong`, and the message. A file is `wrong` when it ends the
process, takes longer than 20 s or raises anything but a message, and when it must be refused and
is listed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto
from tensorflow.core.util.saved_tensor_slice_pb2 import SavedTensorSlices

from runner.commands.command_line import main as runner
from tests.conformance.goldens import MAKERS, make, relocated
from tests.support import torch_files
from tests.support.bytes import MUTATIONS
from tests.support.tables import recompressed, stored
from tests.support.torch_files import Storage, tensor

MEMORY, SECONDS = 1 << 30, 20
_NUMBERS = {"FLOAT": 1, "STRING": 7}  # In `tensorflow/core/framework/types.proto`.
DATA = Path(__file__).parents[1] / "data" / "orbax" / "folders"

Maker = Callable[..., object]
GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Hostile:
    """A hostile file.

    Attributes:
      maker: called with an empty folder and the arguments, it returns the path to open.
      arguments: distinguish the files of one maker.
      may_list: whether to list the file is right, or as right as to refuse it.
    """

    maker: Maker
    arguments: tuple[Any, ...]
    may_list: bool


FILES: dict[str, Hostile] = {}


def hostile(*cases: Any, may_list: bool = False) -> Callable[[Maker], Maker]:
    """Registers a maker once for each case, or once alone."""

    def register(maker: Maker) -> Maker:
        for case in cases or ((),):
            arguments = case if isinstance(case, tuple) else (case,)
            label = "-".join(re.sub(r"\W+", "_", str(part))[:40] for part in arguments)
            FILES[f"{maker.__name__}{'-' * bool(label)}{label}"] = Hostile(
                maker, arguments, may_list
            )
        return maker

    return register


# Nothing that waits or has no end is opened.


def _pipe(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return str(path)


@hostile(
    *[
        "pipe",
        "m.keras",
        "m.h5",
        "m.npz",
        "m.npy",
        "m.pt",
        "m.safetensors",
        "m.msgpack",
        "m.ckpt",
        "m.index",
    ]
)
def pipe(folder: Path, name: str) -> object:
    return _pipe(folder / name).removesuffix(".index")


@hostile("checkpoint", "MLmodel", "_METADATA", "variables/variables.index")
def pipe_in_directory(folder: Path, name: str) -> object:
    _pipe(folder / name)
    return folder


@hostile("m", "m-1.index", "m.safetensors")
def pipe_named_by_state_file(folder: Path, name: str) -> object:
    _pipe(folder / name)
    return _state(folder, f'model_checkpoint_path: "{name.removesuffix(".index")}"\n')


@hostile("m.safetensors", "m.bin", "m.weights.h5")
def pipe_as_shard(folder: Path, name: str) -> object:
    _pipe(folder / name)
    return _json(folder / "m.index.json", {"weight_map": {"w": name}})


@hostile()
def pipe_as_data_of_a_bundle(folder: Path) -> object:
    _bundle(folder, shape=(0,), size=0)
    (folder / "m.data-00000-of-00001").unlink()
    _pipe(folder / "m.data-00000-of-00001")
    return folder / "m"


@hostile()
def pipe_in_orbax(folder: Path) -> object:
    copy = shutil.copytree(DATA, folder / "copy")
    os.mkfifo(copy / "params.Dense_0.bias" / "1")
    return copy


@hostile("/dev/zero", "/dev/random", "/dev/full")
def device(folder: Path, name: str) -> object:
    (folder / "m.npy").symlink_to(name)
    return folder / "m.npy"


@hostile()
def socket_file(folder: Path) -> object:
    before = Path.cwd()
    os.chdir(folder)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("m.pt")
    os.chdir(before)
    return folder / "m.pt"


@hostile()
def link_to_itself(folder: Path) -> object:
    (folder / "m.npy").symlink_to("m.npy")
    return folder / "m.npy"


# Shapes that no file holds, in every format that states shapes.

SHAPES = (
    (-1,),
    (-(1 << 63),),
    (2, -2, -2),
    (1 << 40, 1 << 40),
    (0, 1 << 62, 1 << 62),
    (1 << 62,),
    (3 << 30,),
    (1,) * 300,
)
BY_SHAPE = [(shape,) for shape in SHAPES]
WITH_ELEMENTS = [(shape,) for shape in SHAPES if 0 not in shape]


@hostile(*((shape, dtype) for shape in SHAPES for dtype in ("FLOAT", "STRING")), may_list=True)
def shape_in_bundle(folder: Path, shape: tuple[int, ...], dtype: str) -> object:
    return _bundle(folder, shape=shape, dtype=dtype)


@hostile(*((shape, dtype) for shape in SHAPES for dtype in ("FLOAT", "STRING")), may_list=True)
def shape_in_v1(folder: Path, shape: tuple[int, ...], dtype: str) -> object:
    return _v1(folder, shape=shape, dtype=dtype)


@hostile(*BY_SHAPE, may_list=True)
def shape_in_npy(folder: Path, shape: tuple[int, ...]) -> object:
    (folder / "m.npy").write_bytes(_npy(shape))
    return folder / "m.npy"


@hostile(*((shape, dtype) for shape in SHAPES for dtype in ("<f4", "<U99999999")), may_list=True)
def shape_in_npz(folder: Path, shape: tuple[int, ...], dtype: str) -> object:
    return _zip(folder / "m.npz", {"w.npy": _npy(shape, dtype)}, zipfile.ZIP_DEFLATED)


@hostile(*WITH_ELEMENTS)
def shape_in_safetensors(folder: Path, shape: tuple[int, ...]) -> object:
    return _safetensors(folder, {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}})


@hostile(*WITH_ELEMENTS)
def shape_in_msgpack(folder: Path, shape: tuple[int, ...]) -> object:
    import msgpack

    sizes = [size if size < 1 << 63 else 1 for size in shape]
    array = msgpack.packb((sizes, "float32", bytes(16)), use_bin_type=True)
    (folder / "m.msgpack").write_bytes(msgpack.packb({"w": msgpack.ExtType(1, array)}))
    return folder / "m.msgpack"


@hostile(*WITH_ELEMENTS)
def shape_in_torch(folder: Path, shape: tuple[int, ...]) -> object:
    strides = (1,) * len(shape)
    return torch_files.save(folder / "m.pt", {"w": tensor(shape=shape, strides=strides)})


@hostile((3 << 30,), ((1 << 40, 1 << 40),), ((-1,),), (([[[]]],),), (("x",),))
def shape_in_orbax(folder: Path, shape: Any) -> object:
    copy = shutil.copytree(DATA, folder / "copy")
    file = copy / "params.Dense_0.bias" / ".zarray"
    content = json.loads(file.read_text())
    return _json(file, content | {"shape": shape, "chunks": shape}) and copy


@hostile(
    "999999999 999999999\nx 1 2 3 4\n",
    "99999999999999 300\na \0\0\0\0",
    "0 300\nx 1 2",
    may_list=True,
)
def shape_in_word_vectors(folder: Path, text: str) -> object:
    (folder / "m.txt").write_text(text)
    return folder / "m.txt"


# Other entries of TensorFlow's indices.


@hostile(
    *(
        {"shape": (4,), name: value}
        for name, value in (
            *(("offset", value) for value in (-1, 1 << 62, 100)),
            *(("size", value) for value in (-1, 1 << 62, 1)),
            *(("shard_id", value) for value in (-1, 7, (1 << 31) - 1)),
            *(("dtype", value) for value in (0, 7, 20, 21, 101, 999)),
        )
    ),
    may_list=True,
)
def entry_of_bundle(folder: Path, entry: Mapping[str, Any]) -> object:
    return _bundle(folder, **entry)


@hostile(
    *(
        ((),),
        (((0, 5),),),
        (((-1, 2),),),
        (((1 << 62, 1 << 62),),),
        (((0, 2), (0, 2)),),
        (((2, 2),),),
    ),
    may_list=True,
)
def slices_of_bundle(folder: Path, extents: Any) -> object:
    return _bundle(folder, shape=(4,), slices=extents, size=0)


@hostile(0, -1, 1 << 30)
def shards_of_bundle(folder: Path, count: int) -> object:
    return _bundle(folder, shape=(4,), num_shards=count, size=99)


@hostile(0, 9, may_list=True)
def order_of_bundle(folder: Path, version: int) -> object:
    return _bundle(folder, shape=(4,), endianness=1 if version else 0, version=version)


@hostile()
def unknown_rank(folder: Path) -> object:
    return _bundle(folder, shape=None)


@hostile(b"", b"\xff" * 40, b"\n\xff\xff\xff\xff\x7f")
def garbage_in_index(folder: Path, value: bytes) -> object:
    _table(
        folder / "m.index", [(b"", BundleHeaderProto(num_shards=1)), (b"w", value or b"\x12\x7f")]
    )
    (folder / "m.data-00000-of-00001").write_bytes(bytes(16))
    return folder / "m"


@hostile(may_list=True)
def keys_in_wrong_order(folder: Path) -> object:
    entry = _entry((4,))
    _table(
        folder / "m.index", [(b"z", entry), (b"", BundleHeaderProto(num_shards=1)), (b"a", entry)]
    )
    (folder / "m.data-00000-of-00001").write_bytes(bytes(16))
    return folder / "m"


@hostile()
def snappy_that_declares_gigabytes(folder: Path) -> object:
    _bundle(folder, shape=(4,))
    index = bytearray(recompressed((folder / "m.index").read_bytes(), 1))
    block = b"\xff\xff\xff\xff\x0f" + bytes(20)
    put = stored(block)[: len(block)] + b"\1"
    import google_crc32c

    crc = google_crc32c.value(put)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    footer = b"\0\0\0" + bytes([len(block)])
    index = bytearray(put + masked.to_bytes(4, "little") + footer.ljust(40, b"\0") + index[-8:])
    (folder / "m.index").write_bytes(index)
    return folder / "m"


@hostile("m.index", "m.ckpt")
def block_of_gigabytes(folder: Path, name: str) -> object:
    footer = b"\0\0\0" + b"\x80\x80\x80\x80\x18"  # 6 GB.
    tail = footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    return _sparse(folder / name, b"", 8 * GIGABYTE, tail).removesuffix(".index")


@hostile(0.1, 0.5, 0.99)
def truncated_v1(folder: Path, part: float) -> object:
    golden = make("v1", folder / "v1")
    file = max(golden.files, key=lambda file: file.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])
    return golden.path


# Zip archives.

_WEIGHTS = {"keras": "model.weights.h5", "npz": "w.npy", "pt": "m/data.pkl"}


@hostile(
    *(
        (suffix, method)
        for suffix in _WEIGHTS
        for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED)
    )
)
def archive_that_unpacks_to_much(folder: Path, suffix: str, method: int) -> object:
    return _zip(folder / f"m.{suffix}", {_WEIGHTS[suffix]: 300}, method)


@hostile("keras", "npz", "pt")
def size_of_member(folder: Path, suffix: str) -> object:
    path = Path(_zip(folder / f"m.{suffix}", {_WEIGHTS[suffix]: b"x" * 99}, zipfile.ZIP_DEFLATED))
    content = path.read_bytes()
    path.write_bytes(content.replace((99).to_bytes(4, "little"), b"\xf0\xff\xff\xff"))
    return path


@hostile("keras", "npz", "pt")
def directory_of_archive(folder: Path, suffix: str) -> object:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 900 << 20, 0, 0)
    return _sparse(folder / f"m.{suffix}", b"PK\3\4", GIGABYTE, end)


@hostile(may_list=True)
def archive_of_many_members(folder: Path) -> object:
    return _zip(folder / "m.npz", {f"{i}.npy": _npy((1,)) + bytes(4) for i in range(20_000)})


@hostile("keras", "npz", "pt")
def member_at_another_place(folder: Path, suffix: str) -> object:
    path = Path(_zip(folder / f"m.{suffix}", {_WEIGHTS[suffix]: b"x" * 99}))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[at + 42 : at + 46] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    return path


@hostile("keras", "npz", "pt")
def encrypted_member(folder: Path, suffix: str) -> object:
    path = Path(_zip(folder / f"m.{suffix}", {_WEIGHTS[suffix]: b"x" * 99}))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[6] = content[at + 8] = 1
    path.write_bytes(content)
    return path


@hostile("zip in zip", "empty", "only a directory")
def odd_archive(folder: Path, kind: str) -> object:
    inner = Path(_zip(folder / "inner.zip", {"w.npy": _npy((1,))}))
    members = {
        "zip in zip": {"w.npy": inner.read_bytes()},
        "empty": {},
        "only a directory": {"x/": b""},
    }
    return _zip(folder / "m.npz", members[kind])


@hostile("npz", "npy")
def pickled_objects(folder: Path, suffix: str) -> object:
    path = folder / f"m.{suffix}"
    (np.save if suffix == "npy" else np.savez)(path, np.array([{}], object))
    return path


# HDF5.


@contextlib.contextmanager
def _hdf5(folder: Path) -> Iterator[h5py.File]:
    with h5py.File(folder / "m.h5", "w") as file:
        yield file


@hostile("gzip", None)
def one_chunk_of_gigabytes(folder: Path, compression: str | None) -> object:
    with _hdf5(folder) as file:
        options: Any = {"chunks": (GIGABYTE - 1,), "compression": compression, "dtype": "i1"}
        data = file.create_dataset("w", (3 * GIGABYTE,), **options)
        packed = gzip.zlib.compress(bytes(99)) if compression else bytes(99)  # type: ignore[attr-defined]
        data.id.write_direct_chunk((0,), packed)
    return folder / "m.h5"


@hostile("f4", "S1000", h5py.string_dtype(), "f8")
def dataset_of_gigabytes(folder: Path, dtype: Any) -> object:
    with _hdf5(folder) as file:
        file.create_dataset("w", (3 * GIGABYTE,), dtype, chunks=(1000,))[:1] = (
            0 if dtype in ("f4", "f8") else b"x"
        )
    return folder / "m.h5"


@hostile("weights", "list", "optimizer", "pipe")
def external_link(folder: Path, kind: str) -> object:
    with h5py.File(folder / "other.h5", "w") as other:
        other["g/secret"] = [42.0]
    if kind == "pipe":
        _pipe(folder / "pipe.h5")
    with _hdf5(folder) as file:
        if kind in ("weights", "pipe"):
            name = "pipe.h5" if kind == "pipe" else "other.h5"
            file["model_weights"] = h5py.ExternalLink(name, "/g")
        else:
            group = file.create_group("model_weights/g" if kind == "list" else "optimizer_weights")
            file.require_group("model_weights")
            group.attrs["weight_names"] = [b"secret"]
            group["secret"] = h5py.ExternalLink("other.h5", "/g/secret")
    return folder / "m.h5"


@hostile()
def external_data(folder: Path) -> object:
    (folder / "raw").write_bytes(bytes(64))
    with _hdf5(folder) as file:
        file.create_dataset("w", (4,), "f4", external=[(str(folder / "raw"), 0, 16)])
    return folder / "m.h5"


@hostile()
def virtual_data(folder: Path) -> object:
    with h5py.File(folder / "other.h5", "w") as other:
        other["w"] = np.ones(4, "f4")
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "w", (4,))
    with _hdf5(folder) as file:
        file.create_virtual_dataset("w", layout)
    return folder / "m.h5"


@hostile(70, 20_000)
def nested_groups(folder: Path, depth: int) -> object:
    with _hdf5(folder) as file:
        group = file
        for _ in range(depth):
            group = group.create_group("g")
        group["w"] = 1.0
    return folder / "m.h5"


@hostile(may_list=True)
def group_in_itself(folder: Path) -> object:
    with _hdf5(folder) as file:
        group = file.create_group("g")
        group["g"] = file
        group["soft"] = h5py.SoftLink("/g/soft")
        group["w"] = 1.0
    return folder / "m.h5"


@hostile()
def many_datasets(folder: Path) -> object:
    with _hdf5(folder) as file:
        for number in range(60_000):
            file.create_group(f"g{number}")
    return folder / "m.h5"


@hostile("opaque", "compound", "array", "enum", "reference", "empty", "vlen", may_list=True)
def type_of_dataset(folder: Path, kind: str) -> object:
    dtypes: dict[str, Any] = {
        "opaque": h5py.opaque_dtype(np.dtype("M8[s]")),
        "compound": [("a", "f4"), ("b", "O", ())][:1],
        "array": np.dtype(("f4", (3, 3))),
        "enum": h5py.enum_dtype({"A": 1}),
        "reference": h5py.ref_dtype,
        "vlen": h5py.vlen_dtype("f4"),
    }
    with _hdf5(folder) as file:
        if kind == "empty":
            file["w"] = h5py.Empty("f4")
        else:
            file.create_dataset("w", (2,), dtypes[kind])
    return folder / "m.h5"


@hostile("..", "/", "a/../../b", "", "\udcff", may_list=True)
def listed_weight(folder: Path, name: str) -> object:
    with _hdf5(folder) as file:
        group = file.create_group("model_weights/a")
        group.attrs["weight_names"] = [name.encode(errors="surrogateescape")]
    return folder / "m.h5"


# Text.

NESTED = 100_000


@hostile("[", '{"a":', '{"weight_map":', '{"weight_map":[', "{")
def nested_json(folder: Path, unit: str) -> object:
    (folder / "m.json").write_text('{"weight_map": ' + unit * NESTED)
    return folder / "m.json"


@hostile('{"weight_map"', "{", '{"a": "')
def sparse_json(folder: Path, head: str) -> object:
    return _sparse(folder / "m.json", head.encode(), 8 * GIGABYTE)


@hostile(
    "../m", "/etc/passwd", "", ".", "m.json", "m\0", "gone.bin", 7, None, {"a": 1}, [[]], ["m.json"]
)
def shard(folder: Path, name: Any) -> object:
    return _json(folder / "m.json", {"weight_map": {"w": name}})


@hostile([], {}, 0, None, "text")
def weight_map(folder: Path, content: Any) -> object:
    return _json(folder / "m.json", {"weight_map": content})


@hostile()
def wide_json(folder: Path) -> object:
    (folder / "m.json").write_text('{"weight_map": [' + "{}," * 9_000_000 + "0]}")
    return folder / "m.json"


@hostile(
    *(
        "",
        "\0" * 99,
        'model_checkpoint_path: "."\n',
        'model_checkpoint_path: "checkpoint"\n',
        'model_checkpoint_path: "/dev/zero"\n',
        'model_checkpoint_path: "a\\000b"\n',
        "a: {" * NESTED,
        "all_model_checkpoint_paths: 'x'\n" * 40_000,
    )
)
def state_file(folder: Path, content: str) -> object:
    return _state(folder, content)


@hostile("checkpoint", "MLmodel", "_METADATA")
def sparse_description(folder: Path, name: str) -> object:
    _sparse(folder / name, b"flavors: ", 8 * GIGABYTE)
    return folder


@hostile(
    *(
        "flavors: " + "[" * 300 + "]" * 300,
        "flavors: " + "{a: " * 5000,
        "flavors: &a {b: *a}",
        "flavors: {keras: {data: /etc/passwd}}",
        "flavors: {keras: {data: ../../..}}",
        "flavors: {keras: [1]}",
        "- 1",
        "!!python/object/apply:os.abort []",
        "flavors: {a: " + "x" * 900_000,
    )
)
def mlflow_model(folder: Path, content: str) -> object:
    (folder / "MLmodel").write_text(content)
    return folder


@hostile("[" * NESTED, "{}", '{"tree_metadata": [' + "1," * 99, '{"tree_metadata": {"a": 1}}')
def orbax_metadata(folder: Path, content: str) -> object:
    copy = shutil.copytree(DATA, folder / "copy")
    (copy / "_METADATA").write_text(content)
    return copy


# Headers of the other formats.


@hostile(
    *(
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 62]}},
        {"w": {"dtype": "X9", "shape": [4], "data_offsets": [0, 16]}},
        {"w": 1},
        {"__metadata__": {"a": 1}},
        [],
        *({f"w{i}": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for i in range(2)},),
    )
)
def header_of_safetensors(folder: Path, header: Any) -> object:
    return _safetensors(folder, header)


@hostile(may_list=True)
def many_tensors(folder: Path) -> object:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return _safetensors(folder, {f"w{i}": empty for i in range(100_000)}, b"")


@hostile("{" * 5000, "[" * 90_000)
def nested_safetensors(folder: Path, header: str) -> object:
    (folder / "m").write_bytes(len(header).to_bytes(8, "little") + b"{" + header.encode())
    return folder / "m"


@hostile(
    "(" * 5000,
    "{'descr': 'O', 'fortran_order': 0, 'shape': ()}",
    "-" * 9000,
    "9" * 9000,
    "{'a':" * 900,
)
def header_of_npy(folder: Path, header: str) -> object:
    content = header.encode()
    (folder / "m.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(content)) + content)
    return folder / "m.npy"


@hostile()
def long_header_of_npy(folder: Path) -> object:
    return _sparse(folder / "m.npy", b"\x93NUMPY\2\0\xff\xff\xff\x7f", 4 * GIGABYTE)


@hostile("npy", "txt", "pt", "msgpack", "safetensors", may_list=True)
def sparse_values(folder: Path, suffix: str) -> object:
    heads = {
        "npy": _npy((GIGABYTE // 2,)),
        "txt": b"a 1 2 3 4 5\n",
        "pt": pickle.dumps(torch_files.MAGIC, 2),
        "msgpack": b"\x81\xa1w\xc6\x7f\xff\xff\xff",
        "safetensors": b"\xff\xff\xff\x7f\0\0\0\0{",
    }
    size = GIGABYTE // 2 if suffix == "txt" else 2 * GIGABYTE + (1 << 20)
    return _sparse(folder / f"m.{suffix}", heads[suffix], size)


@hostile(
    *(
        b"(" * 100_000 + b".",
        b"(" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02]q\0" + b"h\0h\0\x86q\0" * 50_000 + b".",
        b"\x80\x02" + b"}" * 10_000 + b".",
        b"\x80\x02cos\nsystem\nX\4\0\0\0trueR.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        # What a megabyte holds, named or passed on many times over.
        b"\x80\x04X\0\0\x10\0" + bytes(1 << 20) + b"q\0" + b"h\0h\0\x93" * 100_000 + b"(l.",
        b"\x80\x02(" + b"N" * (1 << 20) + b"tq\0(" + b"cos\nabort\nh\0R" * 100_000 + b"l.",
        b"\x80\x03(" + b"N" * (1 << 20) + b"tq\0(" + b"cos\nabort\nh\0\x81" * 100_000 + b"l.",
        b"\x80\x02}X\1\0\0\0w" + b"c__builtin__\nlist\n)" + b"R)" * 30_000 + b"Rs.",
    )
)
def pickle_of_torch(folder: Path, content: bytes) -> object:
    return torch_files.save(folder / "m.pt", content)


@hostile(
    *(
        {"strides": (1 << 62,)},
        {"strides": (-1,)},
        {"offset": -1},
        {"offset": 1 << 62},
        {"shape": (1 << 40,), "strides": (0,)},
        {"shape": ("x",)},
        {"storage": Storage("gone")},
        {"storage": Storage("0", "ObjectStorage")},
    )
)
def tensor_of_torch(folder: Path, arguments: Mapping[str, Any]) -> object:
    return torch_files.save(folder / "m.pt", {"w": tensor(**arguments)})


@hostile(
    b"\x81" * 5000, b"\xdd\xff\xff\xff\xff", b"\x81\xa1a\xc9\xff\xff\xff\xff\1", b"\x81\xa1a" * 90
)
def nested_msgpack(folder: Path, content: bytes) -> object:
    (folder / "m.msgpack").write_bytes(b"\x81\xa1w" + content)
    return folder / "m.msgpack"


def _state(folder: Path, content: str) -> object:
    (folder / "checkpoint").write_text(content)
    return folder


def _json(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def _sparse(path: Path, head: bytes, size: int, tail: bytes = b"") -> str:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
        file.seek(size - len(tail))
        file.write(tail)
    return str(path)


def _npy(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def _zip(path: Path, members: Mapping[str, bytes | int], method: int = zipfile.ZIP_STORED) -> str:
    """Writes an archive; a number stands for so many megabytes of zeros."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            with archive.open(name, "w") as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    for _ in range(content):
                        member.write(bytes(1 << 20))
    return str(path)


def _safetensors(folder: Path, header: Any, data: bytes = bytes(16)) -> str:
    content = json.dumps(header).encode()
    (folder / "m").write_bytes(len(content).to_bytes(8, "little") + content.ljust(1) + data)
    return str(folder / "m")


def _entry(shape: tuple[int, ...] | None, **fields: Any) -> BundleEntryProto:
    dtype = fields.pop("dtype", "FLOAT")
    slices = fields.pop("slices", None)
    number = _NUMBERS[dtype] if isinstance(dtype, str) else dtype
    entry = BundleEntryProto(**{"size": 16, "dtype": number, **fields})
    _set_shape(entry.shape, shape)
    if slices is not None:
        part = entry.slices.add()
        for start, length in slices:
            part.extent.add(start=start, length=length)
    return entry


def _set_shape(proto: Any, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        proto.unknown_rank = True
    for size in shape or ():
        proto.dim.add(size=size)


def _bundle(folder: Path, **fields: Any) -> object:
    header = {"num_shards": 1, "endianness": 0}
    header |= {name: fields.pop(name) for name in ("num_shards", "endianness") if name in fields}
    version = fields.pop("version", 1)
    entry = _entry(fields.pop("shape"), **fields)
    proto = BundleHeaderProto(**header)
    proto.version.producer = version
    _table(folder / "m.index", [(b"", proto), (b"w", entry)])
    (folder / "m.data-00000-of-00001").write_bytes(bytes(16))
    return folder / "m"


def _v1(folder: Path, shape: tuple[int, ...], dtype: str) -> object:
    slices = SavedTensorSlices()
    described = slices.meta.tensor.add(name="w", type=_NUMBERS[dtype])
    _set_shape(described.shape, shape)
    part = described.slice.add()
    for _ in shape:
        part.extent.add()
    _table(folder / "m.ckpt", [(b"", slices)])
    return folder / "m.ckpt"


def _table(path: Path, entries: Any) -> None:
    def block(pairs: Any) -> bytes:
        content = b""
        for key, value in pairs:
            value = value if isinstance(value, bytes) else value.SerializeToString()
            content += b"\0" + _varint(len(key)) + _varint(len(value)) + key + value
        return stored(content + bytes(4) + b"\1\0\0\0")

    data = block(entries)
    handle = _varint(0) + _varint(len(data) - 5)
    index = block([(b"\xff", handle)])
    footer = b"\0\0" + _varint(len(data)) + _varint(len(index) - 5)
    path.write_bytes(data + index + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db"))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _mutated(folder: Path, name: str, seed: int) -> object:
    golden = make(name, folder / "golden")
    rng = random.Random(f"{name} {seed}")
    file = rng.choice(golden.files)
    content = bytearray(file.read_bytes())
    for _ in range(rng.randrange(1, 4)):
        content = rng.choice(MUTATIONS)(content or bytearray(9), rng)
    file.write_bytes(content)
    return relocated(golden, folder / "golden", str(folder / "golden"))


# What is left to 300 files: goldens with some damage.
hostile(*((name, seed) for seed in range(2) for name in MAKERS), may_list=True)(_mutated)


def outcome(path: str) -> str:
    """Lists a file with all statistics, and says how that ended."""
    written, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(errors):
            signal.alarm(SECONDS)
            code = runner(["inspect", path])
            if code == 0:
                signal.alarm(SECONDS)
                code = runner(["inspect", path, "--stats", "--all", "--digest"])
    except BaseException:  # noqa: BLE001 - any other end is the finding
        return f"wrong: {traceback.format_exc()[-500:]!r}"
    message = " ".join(errors.getvalue().split())
    if code == 0:
        return f"listed {len(written.getvalue())}"
    if code == 2 and message.startswith("runner: "):
        return f"refused: {message[:400]}"
    return f"wrong: exit code {code}, {message[:400]}"


def _limit_memory() -> None:
    status = Path("/proc/self/status").read_text()
    (used,) = re.findall(r"VmData:\s+(\d+) kB", status)
    resource.setrlimit(resource.RLIMIT_DATA, (int(used) * 1024 + MEMORY,) * 2)


def _child(folder: Path, file: Hostile) -> str:
    folder.mkdir()
    path = str(file.maker(folder, *file.arguments))
    _limit_memory()
    began = time.monotonic()
    answer = outcome(path)
    if answer.startswith("listed") and not file.may_list:
        answer = f"wrong: {answer}"
    return f"{time.monotonic() - began:.1f} s, {answer}"


def open_all(folder: Path, names: Sequence[str]) -> None:
    """Opens each file in a fork of this process; prints how each ended."""
    for name in names:
        receiving, sending = os.pipe()
        print(name, end=": ", flush=True)
        pid = os.fork()
        if not pid:
            try:
                with contextlib.suppress(BaseException):
                    try:
                        answer = _child(folder / "file", FILES[name])
                    except BaseException:  # noqa: BLE001
                        answer = f"wrong: {traceback.format_exc()[-900:]!r}"
                    os.write(sending, answer.encode(errors="replace")[:60_000])
            finally:
                os._exit(0)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe_end:
            answer = pipe_end.read().decode()
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            answer = f"wrong: ended by {code} {answer}"
        print(answer.replace("\n", " "), flush=True)
        shutil.rmtree(folder / "file", ignore_errors=True)


if __name__ == "__main__":
    np.seterr(all="ignore")
    open_all(Path(sys.argv[1]), sys.argv[2:] or list(FILES))
