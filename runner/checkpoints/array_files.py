"""Files of plain arrays: NumPy's `.npy` and `.npz`, `.safetensors` in one file or in shards."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError, Problem

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
    return CheckpointError(
        Problem(
            f"{path} holds pickled Python objects{f' in {name}' if name else ''}",
            "to load a pickle is to run whatever code is in it, so it is never loaded",
            "if you trust the file, load it yourself and save its arrays: np.savez(path, **arrays)",
        )
    )


class NpzReader(FileReader):
    """Reads the archive at `path`; zipfile checks the CRC-32 of every array that is read.

    Arrays of Python objects, which are pickled, are never loaded.
    """

    format, what = "NumPy archive", "an .npz archive"
    digest = staticmethod(files.digest_of_archive)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, zipfile.ZipFile]]:
        """Opens the archive and yields it for each of its arrays."""
        with zipfile.ZipFile(self.path) as archive:
            members = [name for name in archive.namelist() if name.endswith(SUFFIX)]
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
}


class SafetensorsReader(FileReader):
    """Reads the file at `path`, one tensor at a time from a memory map.

    The format has no checksums: only the digest of a pinned file detects a flipped byte.
    """

    format, what = "safetensors", "a safetensors file"
    errors = (safetensors.SafetensorError,)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, Any]]:
        """Opens the file and yields it for each of its tensors."""
        with safetensors.safe_open(self.path, framework="np") as file:
            yield dict.fromkeys(file.keys(), file)

    def tensor_spec(self, name: str, entry: Any) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        tensor = entry.get_slice(name)
        dtype = str(tensor.get_dtype())
        return TensorSpec(name, tuple(tensor.get_shape()), _DTYPES.get(dtype, dtype.lower()))

    def value(self, name: str, entry: Any) -> NDArray[np.generic]:
        """See `FileReader.value`."""
        return np.asarray(entry.get_tensor(name))


WEIGHT_MAP = "weight_map"


class SafetensorsShardsReader(CheckpointReader):
    """Reads the shards beside the JSON index at `path` that it names."""

    format, what = "sharded safetensors", "an index of safetensors shards"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards disagree on the tensors.
        """
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        stored = {(name, shard) for shard, spec in specs.items() for name in spec.tensors}
        listed = set(self._weight_map.items())
        if differing := sorted(stored ^ listed):
            names = (f"{name} in {shard}" for name, shard in differing)
            raise CheckpointError(
                Problem(
                    f"{self.path} and its shards list different tensors",
                    f"only one of the two has {', '.join(names)}",
                    "copy the index and its shards again, or name another checkpoint",
                )
            )
        tensors = {name: specs[shard].tensors[name] for name, shard in sorted(listed)}

        def content() -> str:
            parts = (f"{shard} {spec.digest}" for shard, spec in specs.items())
            return files.digest_of_parts(parts)

        return CheckpointSpec(self.path, None, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._weight_map)
        for name in names:
            yield from self._shards[self._weight_map[name]].read([name])

    @functools.cached_property
    def _weight_map(self) -> Mapping[str, str]:
        with explained(self.path, self.what):
            shards = json.loads(files.read_text(self.path))[WEIGHT_MAP]
        if not isinstance(shards, dict) or not all(map(_is_name, shards.values())):
            raise unreadable(
                self.path, self.what, f"{WEIGHT_MAP} does not map tensors to file names"
            )
        return shards

    @functools.cached_property
    def _shards(self) -> Mapping[str, SafetensorsReader]:
        folder = os.path.dirname(self.path)
        shards = sorted(set(self._weight_map.values()))
        paths = {shard: os.path.join(folder, shard) for shard in shards}
        missing = [path for path in paths.values() if not files.is_file(path)]
        if missing:
            raise CheckpointError(
                Problem(
                    f"{self.path} lacks {len(missing)} of its {len(paths)} shards",
                    "missing: " + ", ".join(missing),
                    "copy the missing files to the others, or name another checkpoint",
                )
            )
        return {name: SafetensorsReader(files.local_copy(path)) for name, path in paths.items()}


def _is_name(value: object) -> bool:
    # A name with a directory in it could lead anywhere.
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value
