"""Opens a checkpoint of any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner.checkpoints.averaging import AverageReader
from runner.checkpoints.files import through_copy
from runner.checkpoints.reader import CheckpointReader
from runner.checkpoints.recognition import Format, recognise
from runner.errors import CheckpointError, Problem

# Each function imports its format's library, so that only one of them is imported.


def open_checkpoint(path: str, digest: str | None = None) -> CheckpointReader:
    """Returns the reader of the checkpoint at `path`; the format is recognised from content.

    Args:
      path: a bundle's prefix, a file, or a SavedModel's directory, as `locate.resolve` returns it;
        also of a file system that `tf.io.gfile` opens.
      digest: the digest that the content must have, from the spec it was pinned by.

    Raises:
      CheckpointError: when the format is not known, the file cannot be read, or the digest is
        another.
    """
    reader = _OPEN[recognise(path)](path)
    if digest is not None:
        found = reader.spec().digest
        if found != digest:
            raise CheckpointError(
                Problem(
                    f"{path} is not the checkpoint that was pinned",
                    f"its digest is {found}, the pinned one {digest}",
                    "restore the file from a copy, or plan again with the file as it is",
                )
            )
    return reader


def open_pinned(pinned: Sequence[tuple[str, str]]) -> CheckpointReader:
    """Returns the reader of what `locate.resolve` gave: one checkpoint, or an average of several.

    Args:
      pinned: the path and the digest of each.

    Raises:
      CheckpointError: when one of them cannot be opened, or has another digest.
    """
    readers = [open_checkpoint(path, digest) for path, digest in pinned]
    return readers[0] if len(readers) == 1 else AverageReader(readers)


def _bundle(path: str) -> CheckpointReader:
    from runner.checkpoints.object_based import open_bundle

    return open_bundle(path)


def _v1(path: str) -> CheckpointReader:
    from runner.checkpoints.v1_checkpoint import SingleFileReader

    return SingleFileReader(path)


def _saved_model(path: str) -> CheckpointReader:
    from runner.checkpoints.object_based import SavedModelReader

    return SavedModelReader(path)


def _hdf5(path: str) -> CheckpointReader:
    from runner.checkpoints.keras_files import KerasH5Reader, KerasWeightsReader, lists_weights

    return through_copy(
        path, lambda file: KerasH5Reader(file) if lists_weights(file) else KerasWeightsReader(file)
    )


def _keras(path: str) -> CheckpointReader:
    from runner.checkpoints.keras_files import KerasArchiveReader

    return through_copy(path, KerasArchiveReader)


def _safetensors(path: str) -> CheckpointReader:
    from runner.checkpoints.safetensors_files import SafetensorsReader

    return through_copy(path, SafetensorsReader)


def _safetensors_index(path: str) -> CheckpointReader:
    from runner.checkpoints.safetensors_files import SafetensorsShardsReader

    return SafetensorsShardsReader(path)


def _npz(path: str) -> CheckpointReader:
    from runner.checkpoints.numpy_files import NpzReader

    return through_copy(path, NpzReader)


def _npy(path: str) -> CheckpointReader:
    from runner.checkpoints.numpy_files import NpyReader

    return through_copy(path, NpyReader)


_OPEN: Mapping[Format, Callable[[str], CheckpointReader]] = {
    Format.BUNDLE: _bundle,
    Format.V1: _v1,
    Format.SAVED_MODEL: _saved_model,
    Format.HDF5: _hdf5,
    Format.KERAS: _keras,
    Format.SAFETENSORS: _safetensors,
    Format.SAFETENSORS_INDEX: _safetensors_index,
    Format.NPZ: _npz,
    Format.NPY: _npy,
}
