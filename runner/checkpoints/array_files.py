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
from runner.checkpoints.formats import DAMAGE
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

GLOBAL_STEP = "global_step"


class NpyReader(FileReader):
    """Reads the file at `path` from a memory map.

    A dict saved by `np.save` is pickled and refused; a record takes its place, i.e. an array of
    shape () whose dtype has a field for every tensor. A plain array is one tensor with the name of
    the file. There are no checksums: a flipped byte is found by the digest of a pinned file alone.
    """

    format, what = "NumPy file", "an .npy file"

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        fields = self._fields()
        tensors = {
            name: TensorSpec(name, array.shape, dtype_name(array.dtype))
            for name, array in sorted(fields.items())
        }
        with explained(self.path, self.what):
            content = files.digest_later(self.path)
        return CheckpointSpec(self.path, step_of(self, tensors), tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        fields = self._fields()
        require_names(self.path, names, fields)
        for name in names:
            yield name, in_native_order(np.array(fields[name]))

    def _fields(self) -> dict[str, NDArray[np.generic]]:
        """Returns tensor name -> a view of the memory map."""
        try:
            whole = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except DAMAGE as error:
            if "object" in str(error).lower():
                raise CheckpointError(_pickled(self.path, ())) from error
            raise unreadable(self.path, self.what, error) from error
        if whole.dtype.names is None:
            return {os.path.basename(self.path).removesuffix(".npy"): whole}
        return {name: whole[name] for name in whole.dtype.names}


def in_native_order(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the array with this machine's byte order, which TensorFlow's values have."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """Returns the name of a NumPy dtype as `TensorSpec` has it."""
    return "string" if dtype.kind in "SU" else str(dtype.name)


def step_of(reader: CheckpointReader, tensors: Mapping[str, TensorSpec]) -> int | None:
    """Returns the value of the integer scalar `global_step`, or None when it is missing."""
    spec = tensors.get(GLOBAL_STEP)
    if spec is None or spec.shape != () or not spec.dtype.startswith(("int", "uint")):
        return None
    ((_, value),) = reader.read([GLOBAL_STEP])
    return int(value.item())


def _pickled(path: str, names: Sequence[str]) -> Problem:
    what = f" in {', '.join(names)}" if names else ""
    return Problem(
        f"{path} holds pickled Python objects{what}",
        "to load a pickle is to run whatever code is in it, so it is never loaded",
        "where you trust the file, load it yourself and save its arrays: np.savez(path, **arrays)",
    )


SUFFIX = ".npy"


class NpzReader(FileReader):
    """Reads the archive at `path`; zipfile checks the CRC-32 of every array that is read.

    Arrays of Python objects, which are pickled, are never loaded.
    """

    format, what = "NumPy archive", "an .npz archive"

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._opened() as archive:
            tensors = {name: self._spec(archive, name) for name in sorted(_names(archive))}
            content = files.digest_later(self.path, files.digest_of_archive)
        pickled = [name for name, tensor in tensors.items() if tensor.dtype == "object"]
        if pickled:
            raise CheckpointError(_pickled(self.path, pickled))
        step = step_of(self, tensors)
        return CheckpointSpec(self.path, step, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self._opened() as archive:
            require_names(self.path, names, dict.fromkeys(_names(archive)))
            for name in names:
                yield name, _array(archive, name)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        with explained(self.path, self.what), zipfile.ZipFile(self.path) as archive:
            yield archive

    def _spec(self, archive: zipfile.ZipFile, name: str) -> TensorSpec:
        with archive.open(name + SUFFIX) as member:
            version = np.lib.format.read_magic(member)
            read_header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read_header(member)
        return TensorSpec(name, shape, dtype_name(dtype))


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(SUFFIX) for name in archive.namelist() if name.endswith(SUFFIX)]


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    with archive.open(name + SUFFIX) as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        # The checksum is compared at the end of the member.
        if member.read(1):
            raise ValueError(f"{name} is longer than its shape")
    return in_native_order(array)


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

    The format has no checksums: a flipped byte is found by the digest of a pinned file alone.
    """

    format, what = "safetensors", "a safetensors file"

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._opened() as file:
            tensors = {
                name: _tensor_spec(name, file.get_slice(name)) for name in sorted(file.keys())
            }
            content = files.digest_later(self.path)
        return CheckpointSpec(self.path, None, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self._opened() as file:
            require_names(self.path, names, dict.fromkeys(file.keys()))
            for name in names:
                yield name, np.asarray(file.get_tensor(name))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        with (
            explained(self.path, self.what, safetensors.SafetensorError),
            safetensors.safe_open(self.path, framework="np") as file,
        ):
            yield file


def _tensor_spec(name: str, entry: Any) -> TensorSpec:
    dtype = str(entry.get_dtype())
    return TensorSpec(name, tuple(entry.get_shape()), _DTYPES.get(dtype, dtype.lower()))


WEIGHT_MAP = "weight_map"


class SafetensorsShardsReader(FileReader):
    """Reads the shards beside the JSON index at `path` that it names."""

    format, what = "sharded safetensors", "an index of safetensors shards"

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards do not agree on the tensors.
        """
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        held = {(name, shard) for shard, spec in specs.items() for name in spec.tensors}
        listed = set(self._weight_map.items())
        remedy = "copy the index and its shards again, or name another checkpoint"
        problems = [
            Problem(f"{self.path} lists {name} in {shard}", "it holds no such tensor", remedy)
            for name, shard in sorted(listed - held)
        ]
        problems += [
            Problem(f"{shard} holds {name}", f"{self.path} does not list it there", remedy)
            for name, shard in sorted(held - listed)
        ]
        if problems:
            raise CheckpointError(*problems)
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
            entries = json.loads(files.read_text(self.path))[WEIGHT_MAP]
        if not isinstance(entries, dict) or not all(map(_is_name, entries.values())):
            raise unreadable(
                self.path, self.what, f"{WEIGHT_MAP} does not map tensors to file names"
            )
        return entries

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
