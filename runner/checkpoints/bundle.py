"""TensorFlow V2 bundles, sharded or not, as `tf.compat.v1.train.Saver` writes them."""

from __future__ import annotations

import functools
import glob
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints import bundle_data, bundle_index, digest, files
from runner.checkpoints.reader import (
    Block,
    Bundle,
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    blocks_of,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError, Problem

GLOBAL_STEP = tf.compat.v1.GraphKeys.GLOBAL_STEP
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
WHAT = "a TensorFlow checkpoint"

# A damaged file makes TensorFlow's reader raise any of these.
READ_ERRORS = (
    tf.errors.OpError,
    OSError,
    ValueError,
    RuntimeError,
    TypeError,
    LookupError,
    MemoryError,
)

_WILDCARD = re.compile(r"[*?\[]")
_SHARD = re.compile(r".*\.data-(\d{5})-of-(\d{5})")


class BundleReader(CheckpointReader):
    """Reads the bundle at `prefix`, i.e. `prefix.index` and its data shards.

    The CRC-32C of every tensor that is read is checked. TensorFlow's own reader reads what
    `bundle_data` does not, puts the slices of a partitioned variable together, and says what is
    wrong with damaged data.
    """

    format = "TensorFlow bundle"

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        try:
            require_shards(self.prefix, stored_bytes(self.stored))
            content = digest.of_file(f"{self.prefix}.index")
        except OSError as error:
            raise unreadable(self.prefix, WHAT, error) from error
        tensors = {
            name: TensorSpec(name, self.stored[key].shape, self.stored[key].dtype)
            for name, key in sorted(self.keys.items())
        }
        aliases = self.aliases()
        return CheckpointSpec(
            self.prefix,
            self._step(tensors, aliases),
            tensors,
            self.format,
            content,
            aliases,
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        for name, (value,) in self.read_blocks([(name, (None,)) for name in names]):
            yield name, value

    def read_blocks(
        self, wanted: Sequence[tuple[str, Sequence[Block | None]]]
    ) -> Iterator[tuple[str, list[NDArray[Any]]]]:
        """See `CheckpointReader.read_blocks`."""
        require_names(self.prefix, [name for name, _ in wanted], self.keys)
        entries = [self._entries.get(self.keys[name]) for name, _ in wanted]
        found = bundle_data.read(
            [
                (entry, blocks)
                for (_, blocks), entry in zip(wanted, entries, strict=True)
                if entry is not None
            ]
        )
        for (name, blocks), entry in zip(wanted, entries, strict=True):
            values = None if entry is None else next(found)
            if values is None:  # TensorFlow reads what is stored otherwise, and says what is wrong.
                values = blocks_of(self._tensor(self.keys[name]), blocks)
            yield name, values

    def bundle(self) -> Bundle:
        """See `CheckpointReader.bundle`."""
        return Bundle(self.prefix, self.keys)

    @functools.cached_property
    def stored(self) -> Mapping[str, TensorSpec]:
        """The tensors under the keys of the index."""
        try:
            bundle_index.require_intact(f"{self.prefix}.index")
            return stored_tensors(self._reader)
        except READ_ERRORS as error:
            raise unreadable(self.prefix, WHAT, error) from error

    @functools.cached_property
    def keys(self) -> Mapping[str, str]:
        """Tensor name -> its key in the index."""
        return {key: key for key in self.stored}

    def aliases(self) -> dict[str, str]:
        """Returns other names of some tensors -> tensor name."""
        return {}

    def step_names(self) -> Sequence[str]:
        """Returns the names and aliases that the global step may have, the likeliest first."""
        return (GLOBAL_STEP,)

    @functools.cached_property
    def _entries(self) -> Mapping[str, bundle_data.Entry]:
        try:
            return bundle_data.entries(self.prefix)
        except READ_ERRORS as error:
            raise unreadable(self.prefix, WHAT, error) from error

    @functools.cached_property
    def _reader(self) -> Any:
        if _WILDCARD.search(self.prefix):
            raise CheckpointError(
                Problem(
                    f"{self.prefix} cannot be opened by TensorFlow",
                    "it takes *, ? and [ in a path for wildcards, so that it finds nothing",
                    "rename the folder or the checkpoint",
                )
            )
        return open_reader(self.prefix)

    def _step(self, tensors: Mapping[str, TensorSpec], aliases: Mapping[str, str]) -> int | None:
        for each in self.step_names():
            tensor = tensors.get(aliases.get(each, each))
            if tensor is not None and tensor.shape == () and tensor.dtype in ("int64", "int32"):
                return int(self._tensor(self.keys[tensor.name]))
        return None

    def _tensor(self, key: str) -> NDArray[np.generic]:
        try:
            return as_array(self._reader.get_tensor(key))
        except READ_ERRORS as error:
            raise unreadable(self.prefix, WHAT, f"tensor {key}: {error}") from error


def as_array(value: Any) -> NDArray[np.generic]:
    """Returns what TensorFlow's reader gave as an array.

    A scalar string becomes an array of objects: NumPy's own bytes end at their last zeros.
    """
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def open_reader(path: str) -> Any:
    """Returns TensorFlow's reader of a V2 bundle's prefix or a V1 file.

    `tf.train.load_checkpoint` would look into a directory of the same name first.
    """
    try:
        return tf.compat.v1.train.NewCheckpointReader(path)
    except READ_ERRORS as error:
        raise unreadable(path, WHAT, error) from error


def stored_tensors(reader: Any) -> dict[str, TensorSpec]:
    """Returns every tensor that a TensorFlow reader knows, under its own key."""
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {key: TensorSpec(key, tuple(shape), dtypes[key].name) for key, shape in shapes.items()}


def stored_bytes(tensors: Mapping[str, TensorSpec]) -> int:
    """Returns how many bytes the tensors take at least; text is not counted."""
    sizes = {each: tf.as_dtype(each).size or 0 for each in {t.dtype for t in tensors.values()}}
    return sum(math.prod(t.shape) * sizes[t.dtype] for t in tensors.values())


def require_shards(prefix: str, needed: int) -> None:
    """Checks that a bundle's data shards are there and not shorter than its tensors.

    Args:
      prefix: the bundle's prefix.
      needed: the least number of bytes that all shards together hold.

    Raises:
      CheckpointError: when shards are missing or truncated.
    """
    directory, name = os.path.split(prefix)
    found = files.matching(directory, f"{glob.escape(name)}.data-*-of-*")
    numbers = [match.groups() for each in found if (match := _SHARD.fullmatch(each))]
    if not numbers:
        raise CheckpointError(
            Problem(
                f"{prefix} cannot be read: it is an index without data",
                f"there is no {prefix}.data-00000-of-00001",
                "copy the data files to the index, or name another checkpoint",
            )
        )
    count = max(total for _, total in numbers)
    present = {shard for shard, total in numbers if total == count}
    missing = [f"{each:05d}" for each in range(int(count)) if f"{each:05d}" not in present]
    if missing:
        raise CheckpointError(
            Problem(
                f"{prefix} cannot be read: {len(missing)} of its {int(count)} data shards are "
                "missing",
                "there is no " + ", ".join(f"{prefix}.data-{each}-of-{count}" for each in missing),
                "copy the missing files to the others, or name another checkpoint",
            )
        )
    held = sum(files.size(each) for each in found if each.endswith(f"-of-{count}"))
    if held < needed:
        raise CheckpointError(
            Problem(
                f"{prefix} cannot be read: its data is truncated",
                f"its tensors take {needed:,} bytes, its data files hold {held:,}",
                "copy the data files again, or name another checkpoint",
            )
        )
