"""NumPy's `.npz` archives."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest
from runner.checkpoints.npy import (
    HEADER_ERRORS,
    dtype_name,
    in_native_order,
    refuse_pickle,
    step_of,
)
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)
from runner.checkpoints.zip_archive import ZIP_ERRORS, checksums

SUFFIX = ".npy"
_WHAT = "an .npz archive"


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
            raise unreadable(self.path, _WHAT, error) from error

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
