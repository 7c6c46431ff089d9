"""Writes files as `torch.save` does, honest and hostile, without PyTorch."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = 0x1950A86A20F9469CFC6C


class Pickled:
    """A call in a pickle to be written: its function by name, and its arguments."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class Class(Pickled):
    """A class in a pickle, without a call of it."""


@dataclass(frozen=True)
class Storage:
    """A reference to a storage; `extra` follows the number of elements in older files."""

    key: str = "0"
    kind: str = "FloatStorage"
    count: int = 4
    extra: tuple[Any, ...] = ()


def dumped(value: Any) -> bytes:
    """Pickles plain values, calls, classes and references to storages."""
    parts = [pickle.PROTO, b"\x02"]

    def write(value: Any) -> None:
        if isinstance(value, Pickled):
            module, _, name = value.name.rpartition(".")
            parts.append(pickle.GLOBAL + f"{module}\n{name}\n".encode())
            if not isinstance(value, Class):
                write(value.arguments)
                parts.append(pickle.REDUCE)
        elif isinstance(value, Storage):
            kind = Class(f"torch.{value.kind}")
            write(("storage", kind, value.key, "cpu", value.count, *value.extra))
            parts.append(pickle.BINPERSID)
        elif isinstance(value, tuple):
            parts.append(pickle.MARK)
            for element in value:
                write(element)
            parts.append(pickle.TUPLE)
        elif isinstance(value, dict):
            parts.append(pickle.EMPTY_DICT)
            for key, element in value.items():
                write(key)
                write(element)
                parts.append(pickle.SETITEM)
        else:
            parts.append(pickle.dumps(value, 2)[2:-1])

    write(value)
    return b"".join([*parts, pickle.STOP])


def tensor(
    storage: Storage | None = None, offset: Any = 0, shape: Any = (4,), strides: Any = (1,)
) -> Pickled:
    """Returns a tensor; by default four floats."""
    name = "torch._utils._rebuild_tensor_v2"
    return Pickled(name, storage or Storage(), offset, shape, strides, False, {})


def save(path: Path, value: Any, storages: Mapping[str, bytes] | None = None) -> str:
    """Writes the layout of PyTorch 1.6 and later, and returns the path.

    Args:
      path: the file.
      value: the saved object, or its pickle.
      storages: the bytes of the storages; by default four zeros.
    """
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", value if isinstance(value, bytes) else dumped(value))
        for key, content in (storages or {"0": bytes(16)}).items():
            archive.writestr(f"m/data/{key}", content)
    return str(path)


def save_legacy(path: Path, value: Any, storages: Mapping[str, NDArray[Any]]) -> str:
    """Writes the layout before PyTorch 1.6, and returns the path."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    with path.open("wb") as file:
        for head in (MAGIC, 1001, system, value, list(storages)):
            file.write(dumped(head))
        for array in storages.values():
            file.write(array.size.to_bytes(8, "little") + array.tobytes())
    return str(path)


def state_dict(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Returns the saved object of float32 and int64 arrays, each in the storage of its own name."""
    kinds = {"float32": "FloatStorage", "int64": "LongStorage"}
    return {
        name: tensor(
            Storage(name, kinds[array.dtype.name], array.size),
            shape=array.shape,
            strides=tuple(stride // array.itemsize for stride in array.strides),
        )
        for name, array in arrays.items()
    }


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], step: int | None = None) -> str:
    """Writes arrays as Lightning does if there is a `step`, else as a plain state dict."""
    held = state_dict(arrays)
    storages = {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
    return save(path, held if step is None else {"state_dict": held, "global_step": step}, storages)
