"""NumPy's `.npy` files: one array, or a record whose fields are tensors."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError, Problem

OBJECT = "object"
GLOBAL_STEP = "global_step"
_WHAT = "an .npy file"

# A damaged header, which is a Python literal, makes NumPy raise any of these.
HEADER_ERRORS = (
    ValueError,
    EOFError,
    TypeError,
    SyntaxError,
    OverflowError,
    MemoryError,
    LookupError,
    AttributeError,
    tokenize.TokenError,
)


class NpyReader(CheckpointReader):
    """Reads the file at `path` from a memory map.

    A dict saved by `np.save` is pickled and refused. What serves instead is a record: an array of
    shape () whose dtype has a field for every tensor. A plain array is one tensor that is called
    like the file. The format has no checksums: a flipped byte is seen only by the file's digest.
    """

    format = "NumPy file"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        fields = self._fields()
        tensors = {
            name: TensorSpec(name, array.shape, dtype_name(array.dtype))
            for name, array in sorted(fields.items())
        }
        refuse_pickle(self.path, tensors.values())
        try:
            content = digest.of_file(self.path)
        except OSError as error:
            raise unreadable(self.path, _WHAT, error) from error
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
        except (OSError, *HEADER_ERRORS) as error:
            if "object" in str(error).lower():
                raise CheckpointError(_pickled(self.path, ())) from error
            raise unreadable(self.path, _WHAT, error) from error
        if whole.dtype.names is None:
            return {os.path.basename(self.path).removesuffix(".npy"): whole}
        return {name: whole[name] for name in whole.dtype.names}


def in_native_order(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the array with this machine's byte order, which TensorFlow's values have."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """Returns the name of a NumPy dtype as `TensorSpec` has it."""
    return "string" if dtype.kind in "SU" else str(dtype.name)


def refuse_pickle(path: str, tensors: Iterable[TensorSpec]) -> None:
    """Raises `CheckpointError` when an array holds Python objects, i.e. pickled code."""
    pickled = [each.name for each in tensors if each.dtype == OBJECT]
    if pickled:
        raise CheckpointError(_pickled(path, pickled))


def step_of(reader: CheckpointReader, tensors: Mapping[str, TensorSpec]) -> int | None:
    """Returns the value of the integer scalar `global_step`, or None when there is none."""
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
