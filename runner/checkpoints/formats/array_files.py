"""Files of plain arrays: NumPy's `.npy` `.npz`, and `.safetensors`."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import safetensors
from numpy.typing import NDArray

from runner.checkpoints import archives
from runner.checkpoints.reader import (
    FileReader,
    TensorSpec,
    is_number,
    parse_dtype,
    read_array,
)
from runner.errors import CheckpointError

SUFFIX = ".npy"


class NpyReader(FileReader):
    """Reads the file at `path` from a memory map.

    A dict saved by `np.save` is pickled and refused; a record takes its place, i.e. an array of
    shape () whose dtype has a field for every tensor. A plain array is one tensor with the name of
    the file. There are no checksums: only the digest of a pinned file detects a flipped byte.
    """

    format, what = "NumPy file", "an .npy file"

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, NDArray[np.generic]]]:
        """Opens the file and yields tensor name -> a view of the memory map."""
        try:
            with np.errstate(over="raise"):  # A shape that no file holds would be a warning.
                array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "object" in str(error).lower():
                raise _pickled(self.path) from error
            raise
        if array.dtype.names is None:
            yield {os.path.basename(self.path).removesuffix(SUFFIX): array}
        else:
            yield {name: array[name] for name in array.dtype.names}

    def tensor_spec(self, name: str, entry: NDArray[np.generic]) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        return TensorSpec(name, entry.shape, _dtype_name(entry.dtype))

    def value(self, name: str, entry: NDArray[np.generic]) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        return _in_native_order(np.array(entry))


def _in_native_order(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the array with this machine's byte order, which TensorFlow's values have."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _dtype_name(dtype: np.dtype[np.generic]) -> str:
    """Returns the name of a NumPy dtype as `TensorSpec` has it."""
    return "string" if dtype.kind in "SU" else str(dtype.name)


def _pickled(path: str, name: str = "") -> CheckpointError:
    return CheckpointError.of(
        f"{path} holds pickled Python objects{f' in {name}' if name else ''}",
        "to load a pickle is to run whatever code is in it, so it is never loaded",
        "if you trust the file, load it yourself and save its arrays: np.savez(path, **arrays)",
    )


class NpzReader(FileReader):
    """Reads the archive at `path`; zipfile checks the CRC-32 of every array that is read.

    Arrays of Python objects, which are pickled, are never loaded.
    """

    format, what = "NumPy archive", "an .npz archive"
    digest = staticmethod(archives.digest_of_archive)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, zipfile.ZipFile]]:
        """Opens the archive and yields it for each of its arrays."""
        with archives.opened_archive(self.path) as archive:
            members = [name for name in archive.namelist() if name.endswith(SUFFIX)]
            if len({*members}) < len(members):
                raise ValueError("it holds two arrays of one name")
            yield {name.removesuffix(SUFFIX): archive for name in members}

    def tensor_spec(self, name: str, entry: zipfile.ZipFile) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        with entry.open(name + SUFFIX) as member:
            version = np.lib.format.read_magic(member)
            read_header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read_header(member)
        if dtype.hasobject:
            raise _pickled(self.path, name)
        return TensorSpec(name, shape, _dtype_name(dtype))

    def value(self, name: str, entry: zipfile.ZipFile) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        with entry.open(name + SUFFIX) as member:
            array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
            # zipfile compares the checksum at the end of the member.
            if member.read(1):
                raise ValueError(f"{name} is longer than its shape")
        return _in_native_order(array)


# The format's names of element types -> NumPy's.
_KINDS = {"U": "uint", "I": "int", "F": "float", "C": "complex"}
_DTYPES = {
    **{f"{kind}{bits}": f"{_KINDS[kind]}{bits}" for kind in _KINDS for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


_ENTRY = frozenset(("dtype", "shape", "data_offsets"))
# The libraries whose layouts of layers are known; others, such as mlx, order kernels otherwise.
_FORMATS = ("pt", "np", "tf", "flax")


def _require_known_format(metadata: Mapping[str, str]) -> None:
    form = metadata.get("format", "pt")
    if form not in _FORMATS:
        raise ValueError(
            f"its format is {form!r}, whose layouts are not known; save its arrays by "
            "safetensors.numpy.save_file if you know them"
        )


class SafetensorsReader(FileReader):
    """Reads the file at `path`, whose header the library checks, one tensor at a time.

    The format has no checksums: only the digest of a pinned file detects a flipped byte.
    """

    format, what = "safetensors", "a safetensors file"
    errors = (safetensors.SafetensorError,)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, tuple[BinaryIO, Mapping[str, Any]]]]:
        """Opens the file and yields tensor name -> the file and the tensor's entry in its header.

        An entry's `data_offsets` count from the end of the header.
        """
        with safetensors.safe_open(self.path, framework="np"):
            pass
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            _require_known_format(header.pop("__metadata__", {}))
            for name, entry in header.items():
                if unknown := entry.keys() - _ENTRY:
                    raise ValueError(f"{name} has an unknown setting {min(unknown)!r}")
                entry["start"] = 8 + length + entry["data_offsets"][0]
            yield {name: (file, entry) for name, entry in header.items()}

    def tensor_spec(self, name: str, entry: Any) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        tensor = entry[1]
        dtype = _DTYPES.get(tensor["dtype"], tensor["dtype"].lower())
        if tensor["dtype"] not in _DTYPES and is_number(dtype):
            dtype = f"{tensor['dtype']} of safetensors"  # F4 has 4 bits here, and 4 bytes in NumPy.
        return TensorSpec(name, tuple(tensor["shape"]), dtype)

    def value(self, name: str, entry: Any) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        file, tensor = entry
        spec = self.tensor_spec(name, entry)
        return read_array(file, spec.shape, parse_dtype(spec.dtype), start=tensor["start"])
