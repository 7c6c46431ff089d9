"""Reads tensors of local bundles into memory of their own, while their checksums are computed."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# No public module has the messages of a bundle's index.
# No public module has the messages of a bundle's index.
from tensorflow.core.protobuf import tensor_bundle_pb2

from runner.checkpoints import bundle_index, files
from runner.checkpoints.reader import Block, OwnMemory, blocks_of

# So much is read at once; while it is checked, the next few are read. Reading into fresh memory
# takes three times as long as checking, so more threads than one do it.
PIECE_BYTES = 4 << 20
AHEAD = 4
READERS = 2
# What is smaller is not worth another thread.
_INLINE_BYTES = 256 << 10
# A session copies smaller arrays. The C library keeps what a variable of up to this size gives back
# when it is overwritten: copies reuse that, while memory from here would be needed besides.
COPIED_BYTES = 32 << 20

_DTYPES = {
    each.as_datatype_enum: each
    for each in (
        *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32),
        *(tf.uint64, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    )
}


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    Attributes:
      dtype: NumPy's type of its elements.
      shape: its dimensions.
      path: the data file.
      offset: where it begins there, in bytes.
      size: how long it is, in bytes.
      crc: its CRC-32C.
    """

    dtype: Any
    shape: tuple[int, ...]
    path: str
    offset: int
    size: int
    crc: int


def entries(prefix: str) -> dict[str, Entry]:
    """Returns key -> where the tensor is, of the tensors that `read` reads.

    Those are none of a remote bundle, or of one of a machine with another byte order, and neither
    text nor partitioned variables. Where the checksum is not computed by the processor there are
    none either, because TensorFlow is faster then.

    Raises:
      OSError: when the index cannot be read.
      ValueError: when it is damaged.
    """
    if files.is_remote(prefix) or google_crc32c.implementation != "c" or sys.byteorder != "little":
        return {}
    header = tensor_bundle_pb2.BundleHeaderProto()
    found = {}
    for key, value in bundle_index.entries(f"{prefix}.index"):
        if not key:
            header.ParseFromString(value)
            if header.endianness != tensor_bundle_pb2.BundleHeaderProto.LITTLE:
                return {}
            continue
        if key.startswith(b"\0"):
            continue  # A part of a partitioned variable.
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        shape = tuple(each.size for each in entry.shape.dim)
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or entry.slices or entry.size != dtype.size * math.prod(shape):
            continue
        found[key.decode()] = Entry(
            dtype.as_numpy_dtype,
            shape,
            f"{prefix}.data-{entry.shard_id:05d}-of-{header.num_shards:05d}",
            entry.offset,
            entry.size,
            bundle_index.unmasked(entry.crc32c),
        )
    return found


def read(
    wanted: Sequence[tuple[Entry, Sequence[Block | None]]],
) -> Iterator[list[NDArray[Any]] | None]:
    """Yields for each tensor the blocks that are wanted of it, each in memory of its own.

    All bytes of a tensor are read and checked, also where only some of its rows are kept; those
    that are not never take more memory than a few pieces.

    Args:
      wanted: tensors with the blocks wanted of them; None for the whole.

    Yields:
      The blocks, or None where the tensor cannot be read or its checksum is wrong.
    """
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(READERS))
        opened: dict[str, int] = {}
        waiting: deque[_Piece] = deque()
        for piece in _pieces(wanted):
            path = piece.tensor.entry.path
            if path not in opened:
                opened[path] = _opened(path, stack)
            piece.file = opened[path]
            if piece.memory.size >= _INLINE_BYTES:
                piece.future = pool.submit(piece.fill)
            waiting.append(piece)
            if len(waiting) > AHEAD:
                yield from _checked(waiting.popleft())
        while waiting:
            yield from _checked(waiting.popleft())


def _opened(path: str, stack: ExitStack) -> int:
    """Returns a descriptor that is closed with the stack, -1 where the file cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return -1  # TensorFlow says what is wrong with it.
    stack.callback(os.close, descriptor)
    return descriptor


class _Tensor:
    """A tensor that is being read."""

    def __init__(self, entry: Entry, blocks: Sequence[Block | None]) -> None:
        self.entry, self.blocks = entry, blocks
        self.rows = _rows(entry, blocks)
        self.crc, self.intact = 0, True
        self._memory: list[NDArray[np.uint8]] = []

    def targets(self) -> Iterator[tuple[NDArray[np.uint8] | None, int, int]]:
        """Yields all of the tensor's bytes in order: where they go, where they begin and end.

        None is where those go that are not wanted.
        """
        ranges = self.rows or [(0, self.entry.size)]
        self._memory = [_aligned(end - begin) for begin, end in ranges]
        at = 0
        for (begin, end), memory in sorted(zip(ranges, self._memory, strict=True), key=_begin):
            yield None, at, begin
            yield memory, begin, end
            at = end
        yield None, at, self.entry.size

    def values(self) -> list[NDArray[Any]]:
        """Returns the blocks."""
        entry = self.entry
        if self.rows:
            return [
                memory.view(entry.dtype).reshape(block[1])
                for memory, block in zip(self._memory, self.blocks, strict=True)
                if block is not None
            ]
        whole = self._memory[0].view(entry.dtype).reshape(entry.shape)
        return blocks_of(whole, self.blocks)


@dataclass
class _Piece:
    """Some of a tensor's bytes.

    Attributes:
      tensor: the tensor.
      memory: takes them.
      offset: where they begin in the file.
      last: whether they are the last.
    """

    tensor: _Tensor
    memory: NDArray[np.uint8]
    offset: int
    last: bool = False
    file: int = -1
    future: Future[int] | None = None

    def fill(self) -> int:
        """Reads them; returns how many there were."""
        if self.file < 0:
            return 0
        return os.preadv(self.file, [self.memory.data], self.offset)


def _pieces(wanted: Sequence[tuple[Entry, Sequence[Block | None]]]) -> Iterator[_Piece]:
    scratch = _scratch()
    for entry, blocks in wanted:
        tensor = _Tensor(entry, blocks)
        for memory, begin, end in tensor.targets():
            for at in range(begin, end, PIECE_BYTES):
                count = min(PIECE_BYTES, end - at)
                taken = next(scratch)[:count] if memory is None else memory[at - begin :][:count]
                yield _Piece(tensor, taken, entry.offset + at)
        yield _Piece(tensor, np.empty(0, np.uint8), entry.offset, last=True)


def _scratch() -> Iterator[NDArray[np.uint8]]:
    """Yields memory for what is not wanted; it is used again when its piece has been checked."""
    # One piece more than waits is being checked, and one is being added.
    yield from itertools.cycle([_aligned(PIECE_BYTES) for _ in range(AHEAD + 2)])


def _checked(piece: _Piece) -> Iterator[list[NDArray[Any]] | None]:
    """Waits for a piece and checks it; after the last one yields the blocks of its tensor."""
    tensor = piece.tensor
    if piece.last:
        yield tensor.values() if tensor.intact and tensor.crc == tensor.entry.crc else None
        return
    try:
        count = piece.fill() if piece.future is None else piece.future.result()
    except OSError:
        count = 0  # TensorFlow says what is wrong with the file.
    tensor.intact &= count == piece.memory.size
    tensor.crc = bundle_index.crc32c(piece.memory, tensor.crc)


def _rows(entry: Entry, blocks: Sequence[Block | None]) -> list[tuple[int, int]]:
    """Returns where the blocks begin and end, in bytes; nothing unless they are separate rows."""
    if not entry.shape or not entry.size:
        return []
    row = entry.size // entry.shape[0]
    ranges = []
    for block in blocks:
        if block is None or any(block[0][1:]) or block[1][1:] != entry.shape[1:]:
            return []
        ranges.append((block[0][0] * row, (block[0][0] + block[1][0]) * row))
    ordered = sorted(ranges)
    apart = all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
    return ranges if apart else []


def _begin(target: tuple[tuple[int, int], NDArray[np.uint8]]) -> tuple[int, int]:
    return target[0]


def _aligned(size: int) -> NDArray[np.uint8]:
    """Returns memory; large memory begins where a session takes it as a tensor's without copying.

    It is not NumPy's, which asks for large pages: where the machine's memory is in pieces, the
    kernel takes longer to find those than to read the file.
    """
    if size <= COPIED_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(OwnMemory(-1, size), np.uint8)
