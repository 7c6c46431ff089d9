"""Sorted string tables: V1 checkpoints, and the indices of V2 bundles, which TensorFlow reads.

TensorFlow checks the CRC-32C of what it reads, but a damaged index makes it lose tensors silently:
when it lists the keys and meets a damaged block after the first, it stops there without an error.
It also tries to allocate whatever a damaged footer claims. So every block is checked here first.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import cramjam
import google_crc32c
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.open import TABLE_MAGIC
from runner.checkpoints.reader import (
    DAMAGE,
    Bundle,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    require_names,
)

GLOBAL_STEP = tf.compat.v1.GraphKeys.GLOBAL_STEP
WHAT = "a TensorFlow V1 checkpoint"

# What TensorFlow's reader raises on a damaged file.
READ_ERRORS = (tf.errors.OpError, *DAMAGE)

# A table consists of blocks, an index block that lists their positions, and a footer with the
# position of the index block. A block is followed by its compression and its checksum.
_FOOTER, _TRAILER = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_MASK_DELTA = 0xA282EAD8


def require_intact(path: str) -> None:
    """Checks every block of a table.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        size = files.size(path)
        for offset, length in _handles(_index_block(file, size)):
            _block(file, size, offset, length)


def require_index_block(path: str) -> None:
    """Checks the footer of a table and the block that lists the others; reads no data.

    Raises:
      OSError: when the file cannot be read.
      ValueError: when it is damaged.
    """
    with files.reading(path) as file:
        _index_block(file, files.size(path))


def _index_block(file: BinaryIO, size: int) -> bytes:
    """Returns the content of the block that lists the others."""
    if size < _FOOTER:
        raise ValueError("it is too short to be a table")
    file.seek(size - _FOOTER)
    footer = file.read(_FOOTER)
    if not footer.endswith(TABLE_MAGIC):
        raise ValueError("it does not end like a table: it is cut off or something else")
    position = 0
    for _ in range(2):
        _, position = _varint(footer, position)
    offset, position = _varint(footer, position)
    length, _ = _varint(footer, position)
    return _block(file, size, offset, length)


def _handles(index: bytes) -> Iterator[tuple[int, int]]:
    """Yields (offset, length) of every block that the block `index` lists."""
    if len(index) < 4:
        raise ValueError("a block of the index is too short")
    (restarts,) = struct.unpack("<I", index[-4:])
    end, position = len(index) - 4 * (restarts + 1), 0
    while position < end:
        _, position = _varint(index, position)
        unshared, position = _varint(index, position)
        length, position = _varint(index, position)
        offset, after = _varint(index, position + unshared)
        yield offset, _varint(index, after)[0]
        position += unshared + length


def _block(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    """Returns a block's content, checked and decompressed."""
    if offset + length + _TRAILER > size:
        raise ValueError(f"the block at byte {offset} reaches beyond the end of the file")
    file.seek(offset)
    block = file.read(length + _TRAILER)
    (masked,) = struct.unpack_from("<I", block, length + 1)
    if google_crc32c.value(block[: length + 1]) != _unmasked(masked):
        raise ValueError(f"checksum mismatch in the block at byte {offset}")
    compression = block[length]
    if compression == _UNCOMPRESSED:
        return block[:length]
    if compression != _SNAPPY:
        raise ValueError(
            f"the block at byte {offset} is compressed by method {compression}; TensorFlow reads "
            "uncompressed blocks (0) and Snappy (1)"
        )
    try:
        return bytes(cramjam.snappy.decompress_raw(block[:length]))
    except cramjam.DecompressionError as error:
        raise ValueError(f"the block at byte {offset} cannot be decompressed: {error}") from error


def _unmasked(masked: int) -> int:
    """Returns the CRC that TensorFlow stores `masked`."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the integer at `position` and the position after it."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a length in the index is damaged")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def open_reader(path: str, what: str) -> Any:
    """Returns TensorFlow's reader of a V2 bundle's prefix or a V1 checkpoint.

    `tf.train.load_checkpoint` would look into a directory of the same name first.
    """
    with explained(path, what, tf.errors.OpError):
        return tf.compat.v1.train.NewCheckpointReader(path)


def stored_tensors(reader: Any) -> dict[str, TensorSpec]:
    """Returns every tensor that a TensorFlow reader lists, under its own key."""
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {key: TensorSpec(key, tuple(shape), dtypes[key].name) for key, shape in shapes.items()}


def as_array(value: Any) -> NDArray[np.generic]:
    """Returns what TensorFlow's reader gave as an array.

    A scalar string becomes an array of objects: NumPy's own bytes end at their last zeros.
    """
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def is_step(tensor: TensorSpec | None) -> bool:
    """Whether a tensor can be the global step."""
    return tensor is not None and tensor.shape == () and tensor.dtype in ("int64", "int32")


class V1Reader(FileReader):
    """Reads the V1 checkpoint at `path`: a file, or a pattern such as `model-7-?????-of-00004`.

    TensorFlow's own reader checks the CRC-32C of every block that is read.
    """

    format = "TensorFlow V1 checkpoint"

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        tensors = dict(sorted(self._stored.items()))
        step = int(self._tensor(GLOBAL_STEP)) if is_step(tensors.get(GLOBAL_STEP)) else None
        with explained(self.path, WHAT):
            digests = [files.digest_of_file(shard) for shard in self._shards()]
        digest = digests[0] if len(digests) == 1 else files.digest_of_parts(digests)
        return CheckpointSpec(self.path, step, tensors, self.format, digest)

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
        return open_reader(self.path, WHAT)

    @functools.cached_property
    def _stored(self) -> Mapping[str, TensorSpec]:
        with explained(self.path, WHAT, tf.errors.OpError):
            for shard in self._shards():
                require_index_block(shard)
            return stored_tensors(self._reader)

    def _tensor(self, name: str) -> NDArray[np.generic]:
        with explained(self.path, WHAT, tf.errors.OpError, of=f"tensor {name}"):
            try:
                return as_array(self._reader.get_tensor(name))
            except tf.errors.UnimplementedError:
                return self._sliced(name)

    def _sliced(self, name: str) -> NDArray[np.generic]:
        """Reads a partitioned variable, which only the restore operation puts together."""
        dtype = tf.as_dtype(self._stored[name].dtype)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            (value,) = tf.raw_ops.RestoreV2(
                prefix=self.path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
            )
            return np.asarray(session.run(value))

    def _shards(self) -> list[str]:
        directory, name = os.path.split(self.path)
        return files.matching(directory, name) if "?" in name else [self.path]
