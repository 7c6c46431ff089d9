"""Single `.safetensors` files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from runner.checkpoints import digest, files
from runner.checkpoints.files import local_copy
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError, Problem

_FILE = "a safetensors file"
_READ_ERRORS = (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError)

# The names that the format gives its element types, in NumPy's words.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class SafetensorsReader(CheckpointReader):
    """Reads the file at `path`, one tensor at a time from a memory map.

    The format has no checksums: a flipped byte is seen only by the file's digest.
    """

    format = "safetensors"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._opened() as file:
            tensors = {name: _spec(name, file.get_slice(name)) for name in sorted(file.keys())}
            content = digest.of_file(self.path)
        return CheckpointSpec(self.path, None, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self._opened() as file:
            require_names(self.path, names, dict.fromkeys(file.keys()))
            for name in names:
                yield name, np.asarray(file.get_tensor(name))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safetensors.safe_open(self.path, framework="np") as file:
                yield file
        except _READ_ERRORS as error:
            raise unreadable(self.path, _FILE, error) from error


def _spec(name: str, entry: Any) -> TensorSpec:
    dtype = str(entry.get_dtype())
    return TensorSpec(name, tuple(entry.get_shape()), _DTYPES.get(dtype, dtype.lower()))


WEIGHT_MAP = "weight_map"
_SHARDS = "an index of safetensors shards"


class SafetensorsShardsReader(CheckpointReader):
    """Reads the shards that the JSON index at `path` names; they lie beside it."""

    format = "sharded safetensors"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards do not agree on the tensors.
        """
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        held = {name: spec for each in specs.values() for name, spec in each.tensors.items()}
        problems = [
            Problem(
                f"{self.path} says that {name} is in {shard}",
                f"{shard} holds no such tensor",
                "copy the shards again, or name another checkpoint",
            )
            for name, shard in self._weight_map.items()
            if name not in specs[shard].tensors
        ]
        problems += [
            Problem(
                f"{shard} holds {name}, which {self.path} does not have in it",
                "index and shards belong to different checkpoints",
                "copy the index and its shards again, or name another checkpoint",
            )
            for shard, spec in specs.items()
            for name in spec.tensors
            if self._weight_map.get(name) != shard
        ]
        if problems:
            raise CheckpointError(*problems)
        content = digest.of_parts(f"{shard} {spec.digest}" for shard, spec in specs.items())
        tensors = {name: held[name] for name in sorted(held)}
        return CheckpointSpec(self.path, None, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._weight_map)
        for name in names:
            yield from self._shards[self._weight_map[name]].read([name])

    @functools.cached_property
    def _weight_map(self) -> Mapping[str, str]:
        try:
            entries = json.loads(files.read_text(self.path))[WEIGHT_MAP]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(self.path, _SHARDS, error) from error
        if not isinstance(entries, dict) or not all(_is_name(each) for each in entries.values()):
            raise unreadable(self.path, _SHARDS, f"{WEIGHT_MAP} does not map tensors to file names")
        return entries

    @functools.cached_property
    def _shards(self) -> Mapping[str, SafetensorsReader]:
        folder = os.path.dirname(self.path)
        paths = {
            each: os.path.join(folder, each) for each in sorted(set(self._weight_map.values()))
        }
        missing = [path for path in paths.values() if not files.is_file(path)]
        if missing:
            raise CheckpointError(
                Problem(
                    f"{self.path} lacks {len(missing)} of its {len(paths)} shards",
                    "missing: " + ", ".join(missing),
                    "copy the missing files to the others, or name another checkpoint",
                )
            )
        return {each: SafetensorsReader(local_copy(path)) for each, path in paths.items()}


def _is_name(value: object) -> bool:
    # A name with a folder in it could lead anywhere.
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value
