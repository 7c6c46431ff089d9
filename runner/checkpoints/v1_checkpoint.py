"""The V1 format of TensorFlow, one file or a file for each shard."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints import bundle_index, digest, files
from runner.checkpoints.bundle import (
    GLOBAL_STEP,
    READ_ERRORS,
    as_array,
    open_reader,
    stored_tensors,
)
from runner.checkpoints.reader import (
    Bundle,
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)

WHAT = "a TensorFlow V1 checkpoint"


class SingleFileReader(CheckpointReader):
    """Reads the V1 checkpoint at `path`: a file, or a pattern such as `model-7-?????-of-00004`.

    TensorFlow's own reader checks the CRC-32C of every block that is read.
    """

    format = "TensorFlow V1 checkpoint"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        tensors = dict(sorted(self._stored.items()))
        step = tensors.get(GLOBAL_STEP)
        has_step = step is not None and step.shape == () and step.dtype in ("int64", "int32")
        return CheckpointSpec(
            self.path,
            int(self._tensor(GLOBAL_STEP)) if has_step else None,
            tensors,
            self.format,
            self._digest(),
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._stored)
        for name in names:
            yield name, self._tensor(name)

    def bundle(self) -> Bundle:
        """See `CheckpointReader.bundle`; `RestoreV2` reads this format too."""
        return Bundle(self.path, {name: name for name in self._stored})

    @functools.cached_property
    def _reader(self) -> Any:
        return open_reader(self.path)

    @functools.cached_property
    def _stored(self) -> Mapping[str, TensorSpec]:
        try:
            for shard in self._shards():
                bundle_index.require_index_block(shard)
            return stored_tensors(self._reader)
        except READ_ERRORS as error:
            raise unreadable(self.path, WHAT, error) from error

    def _tensor(self, name: str) -> NDArray[np.generic]:
        try:
            return as_array(self._reader.get_tensor(name))
        except tf.errors.UnimplementedError:
            return self._sliced(name)
        except READ_ERRORS as error:
            raise unreadable(self.path, WHAT, f"tensor {name}: {error}") from error

    def _sliced(self, name: str) -> NDArray[np.generic]:
        """Reads a partitioned variable, which only the restore operation puts together."""
        dtype = tf.as_dtype(self._stored[name].dtype)
        try:
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=self.path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
                )
                return np.asarray(session.run(value))
        except READ_ERRORS as error:
            raise unreadable(self.path, WHAT, f"tensor {name}: {error}") from error

    def _shards(self) -> list[str]:
        directory, name = os.path.split(self.path)
        return files.matching(directory, name) if "?" in name else [self.path]

    def _digest(self) -> str:
        shards = self._shards()
        try:
            if len(shards) == 1:
                return digest.of_file(shards[0])
            return digest.of_parts(digest.of_file(shard) for shard in shards)
        except OSError as error:
            raise unreadable(self.path, WHAT, error) from error
