"""Single `.safetensors` files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from runner.checkpoints import digest
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)

_WHAT = "a safetensors file"
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
            raise unreadable(self.path, _WHAT, error) from error


def _spec(name: str, entry: Any) -> TensorSpec:
    dtype = str(entry.get_dtype())
    return TensorSpec(name, tuple(entry.get_shape()), _DTYPES.get(dtype, dtype.lower()))
