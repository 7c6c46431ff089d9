"""Keras 3 `.keras` archives: a zip that holds a weights file."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest, hdf5
from runner.checkpoints.keras_weights import KerasWeightsReader
from runner.checkpoints.reader import unreadable
from runner.checkpoints.zip_archive import ZIP_ERRORS, checksums, require_intact

MEMBER = "model.weights.h5"
_WHAT = "a .keras archive"


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in the archive at `path` where they lie; nothing is unpacked.

    Before the first tensor is read, all weights are compared with the CRC-32 in the archive.
    """

    format = "Keras archive"

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        self._require_intact()
        yield from super().read(names)

    @contextlib.contextmanager
    def opened(self) -> Iterator[h5py.File]:
        """Opens the weights file in the archive."""
        try:
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(MEMBER) as member,
                hdf5.opened(self.path, cast(BinaryIO, member), _WHAT) as file,
            ):
                yield file
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _WHAT, error) from error

    def digest(self) -> str:
        """Returns the digest of the archive's checksums."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return digest.of_parts(checksums(archive))
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _WHAT, error) from error

    def _require_intact(self) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive:
                require_intact(archive, MEMBER)
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _WHAT, error) from error
