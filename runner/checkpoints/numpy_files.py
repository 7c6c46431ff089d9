"""NumPy's `.npy` files: one array, or a record whose fields are tensors."""

from __future__ import annotations

import contextlib
import os
import tokenize
import zipfile
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
from runner.checkpoints.recognition import ZIP_ERRORS, checksums
from runner.errors import CheckpointError, Problem

OBJECT = "object"
GLOBAL_STEP = "global_step"
_NPY = "an .npy file"

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
            raise unreadable(self.path, _NPY, error) from error
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
            raise unreadable(self.path, _NPY, error) from error
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


SUFFIX = ".npy"
_NPZ = "an .npz archive"


class NpzReader(CheckpointReader):
    """Reads the archive at `path`; zipfile checks the CRC-32 of every array that is read.

    Arrays of Python objects, which are pickled, are never loaded.
    """

    format = "NumPy archive"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._opened() as archive:
            tensors = {name: self._spec(archive, name) for name in sorted(_names(archive))}
            content = digest.of_parts(checksums(archive))
        refuse_pickle(self.path, tensors.values())
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
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (*ZIP_ERRORS, *HEADER_ERRORS) as error:
            raise unreadable(self.path, _NPZ, error) from error

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
    return [each.removesuffix(SUFFIX) for each in archive.namelist() if each.endswith(SUFFIX)]


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    with archive.open(name + SUFFIX) as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        # The checksum is compared at the end of the member.
        if member.read(1):
            raise ValueError(f"{name} is longer than its shape says")
    return in_native_order(array)
