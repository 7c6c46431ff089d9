"""Keras 3 `.keras` archives: a zip that holds a weights file."""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, cast

import h5py

from runner.checkpoints import digest, files, hdf5
from runner.checkpoints.keras_weights import KerasWeightsReader
from runner.checkpoints.reader import unreadable
from runner.checkpoints.zip_archive import ZIP_ERRORS, checksums, require_intact

MEMBER = "model.weights.h5"
_WHAT = "a .keras archive"


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in the archive at `path` where they lie; nothing is unpacked.

    Before anything is read, all weights are compared with the CRC-32 in the archive: the HDF5
    library must not be given a damaged file.
    """

    format = "Keras archive"

    @contextlib.contextmanager
    def opened(self) -> Iterator[h5py.File]:
        """Opens the weights file in the archive."""
        self._require_intact()
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
            _require_intact(self.path, files.stamp(self.path))
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _WHAT, error) from error


@functools.lru_cache(maxsize=256)
def _require_intact(path: str, stamp: str) -> None:
    """Checks the weights; a file that has not changed since is not read again."""
    with zipfile.ZipFile(path) as archive:
        require_intact(archive, MEMBER)
