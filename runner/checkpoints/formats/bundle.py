"""TensorFlow's checkpoints: V1, bundles (V2) saved by name or by object, and SavedModels."""

from __future__ import annotations

import atexit
import functools
import glob
import math
import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from runner.checkpoints import archives, files
from runner.checkpoints.formats.tables import entries, first_value, require_intact, require_possible
from runner.checkpoints.reader import (
    GLOBAL_STEP,
    CheckpointReader,
    CheckpointSpec,
    RenamedReader,
    TensorSpec,
    explained,
    require_names,
)
from runner.errors import CheckpointError
from runner.internals.tensorflow import (
    BundleEntryProto,
    SavedTensorSlices,
    TrackableObjectGraph,
)

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Of an element of a list, or of Keras 2's `layer_with_weights-1`.
_LIST_INDEX = re.compile(r"(?<=[/-])\d+(?=/|$)")
_NESTED = re.compile(r"(_operations//)+")
# What TensorFlow takes for a pattern, and the name of a link to such a bundle.
_WILDCARD, _LINK = re.compile(r"[*?\\\[]"), "checkpoint"
_SHARD = re.compile(r".*\.data-(\d{5})-of-(\d{5})", re.DOTALL)

_ATTRIBUTES = "/.ATTRIBUTES/"
_VALUE = f"{_ATTRIBUTES}VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"
_BOOKKEEPING = re.compile(
    rf"(.*/)?(_CHECKPOINTABLE_OBJECT_GRAPH|OBJECT_CONFIG_JSON)|save_counter{_VALUE}"
)
# TensorFlow's name for variables that a program does not name.
_UNNAMED = re.compile(r"(.*/)?Variable(_\d+)?")
# `keras.Model.export` saves a copy of every variable under this attribute. They are left out where
# as many others have their shapes and types.
_KERAS_COPIES = "_all_variables/"
# A list of one variable in the root, except for Keras's lists.
_COLLECTION = re.compile(
    rf"(?!(?:(?:non_)?trainable_|_all_)?variables/)([^/]+)/0{re.escape(_VALUE)}"
)
_VARIABLES = "variables/variables"


class BundleReader(CheckpointReader):
    """Reads the bundle at `prefix`, i.e. `prefix.index` and its data shards.

    TensorFlow's reader checks the CRC-32C of every tensor that is read, and joins the slices of a
    partitioned variable.
    """

    format, what = "TensorFlow bundle", "a TensorFlow checkpoint"
    # Possible names and aliases of the global step, most likely first.
    step_names: Sequence[str] = (GLOBAL_STEP,)

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with explained(self.prefix, self.what):
            content = self._content()
        tensors = {
            name: TensorSpec(name, self.stored[key].shape, self.stored[key].dtype)
            for name, key in sorted(self.keys.items())
        }
        aliases = self.aliases()
        step = self._step(tensors, aliases)
        keys = {key: name for name, key in self.keys.items() if key != name}
        order = {alias: _position(name) for alias, name in aliases.items()}
        return CheckpointSpec(
            self.prefix,
            step,
            tensors,
            self.format,
            content,
            aliases=aliases,
            keys=keys,
            order=order,
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.prefix, names, self.keys)
        for name in names:
            yield name, self._tensor(self.keys[name])

    @functools.cached_property
    def stored(self) -> Mapping[str, TensorSpec]:
        """The tensors under the keys of the index."""
        with explained(self.prefix, self.what, tf.errors.OpError, DecodeError):
            self._require_intact()
            reader = self._reader
            dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
            return {
                key: TensorSpec(key, tuple(shape), dtypes[key].name)
                for key, shape in shapes.items()
            }

    @functools.cached_property
    def keys(self) -> Mapping[str, str]:
        """Tensor name -> its key in the index."""
        return {key: key for key in self.stored}

    def aliases(self) -> dict[str, str]:
        """Returns other names of some tensors -> tensor name."""
        return {}

    @functools.cached_property
    def _reader(self) -> Any:
        # `tf.train.load_checkpoint` would prefer a directory of the same name.
        return tf.compat.v1.train.NewCheckpointReader(self._opened)

    @property
    def _opened(self) -> str:
        """The prefix by which TensorFlow opens the files."""
        return without_wildcards(self.prefix)

    def _require_intact(self) -> None:
        """Makes the checks that TensorFlow omits; raises OSError or ValueError."""
        for key, value in entries(f"{self.prefix}.index"):
            if key:  # The first entry describes the shards.
                entry, name = BundleEntryProto.FromString(value), key.decode(errors="replace")
                require_possible(name, entry.shape, entry.dtype, entry.slices)
                # No type takes less than a byte an element.
                elements = math.prod(dim.size for dim in entry.shape.dim)
                if not entry.slices and elements > entry.size:
                    raise ValueError(f"{name} has too few bytes for its shape")

    def _content(self) -> Callable[[], str]:
        """Checks that the files are complete, and returns the function for the digest."""
        require_shards(self.prefix, self._least_bytes())
        return files.digest_later(f"{self.prefix}.index")

    def _least_bytes(self) -> int:
        """Returns how many bytes the tensors take at least; a string takes one or more."""
        tensors = self.stored.values()
        return sum(tensor.bytes or math.prod(tensor.shape) for tensor in tensors)

    def _step(self, tensors: Mapping[str, TensorSpec], aliases: Mapping[str, str]) -> int | None:
        for name in self.step_names:
            tensor = tensors.get(aliases.get(name, name))
            if tensor and tensor.shape == () and tensor.dtype in ("int64", "int32"):
                return int(self._tensor(self.keys[tensor.name]))
        return None

    def _tensor(self, key: str) -> NDArray[np.generic]:
        with explained(self.prefix, self.what, tf.errors.OpError, of=f"tensor {key}"):
            value = self._reader.get_tensor(key)
        # NumPy's bytes lose trailing zeros, so a scalar string becomes an array of objects.
        return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


class V1Reader(BundleReader):
    """Reads the V1 checkpoint at `prefix`: a file, or a pattern such as `model-7-?????-of-00004`.

    TensorFlow's reader checks the CRC-32C of every block that is read. `RestoreV2` reads this
    format too.
    """

    format, what = "TensorFlow V1 checkpoint", "a TensorFlow V1 checkpoint"

    @property
    def _opened(self) -> str:
        return self.prefix  # It may be a pattern.

    def _require_intact(self) -> None:
        for shard in self._shards():
            for tensor in SavedTensorSlices.FromString(first_value(shard)).meta.tensor:
                require_possible(tensor.name, tensor.shape, tensor.type, tensor.slice)

    def _content(self) -> Callable[[], str]:
        shards = self._shards()
        if excess := archives.implausible(self._least_bytes(), sum(map(files.size, shards))):
            raise ValueError(excess)
        parts = [files.digest_later(shard) for shard in shards]
        return parts[0] if len(parts) == 1 else lambda: files.digest_of_parts(p() for p in parts)

    def _tensor(self, key: str) -> NDArray[np.generic]:
        try:
            return super()._tensor(key)
        except CheckpointError as error:
            if not isinstance(error.__cause__, tf.errors.UnimplementedError):
                # TensorFlow calls a tensor in a damaged block not found.
                with explained(self.prefix, self.what, of=f"tensor {key}"):
                    for shard in self._shards():
                        require_intact(shard)
                raise
        # Only the restore operation joins the slices of a partitioned variable.
        dtype = tf.as_dtype(self.stored[key].dtype)
        with (
            explained(self.prefix, self.what, tf.errors.OpError, of=f"tensor {key}"),
            tf.Graph().as_default(),
            tf.compat.v1.Session() as session,
        ):
            (value,) = tf.raw_ops.RestoreV2(
                prefix=self.prefix, tensor_names=[key], shape_and_slices=[""], dtypes=[dtype]
            )
            return np.asarray(session.run(value))

    def _shards(self) -> list[str]:
        directory, name = os.path.split(self.prefix)
        return files.matching(directory, name) if "?" in name else [self.prefix]


class ObjectBasedReader(BundleReader):
    """Reads the object-based checkpoint at `prefix`.

    A tensor is named by its variable's object path, e.g. `model/head/kernel`; the variable's name
    is an alias, unless it is TensorFlow's default or several variables share it, and so is the name
    of a collection of one variable in a `keras.export.ExportArchive`. A slot is named
    `<path of its variable>/<path of its optimizer>/<slot>`.
    """

    format = "TensorFlow object-based checkpoint"
    # TensorFlow's guides call the attribute `step`; the last two are the optimizer's count of
    # steps, of Keras 3 and of Keras 2.
    step_names = (GLOBAL_STEP, "step", "optimizer/_iterations", "optimizer/iter")

    @functools.cached_property
    def keys(self) -> Mapping[str, str]:
        """Object path -> key in the index."""
        paths = {key: object_path(key) for key in self.stored if not _BOOKKEEPING.fullmatch(key)}
        copies = {key for key in paths if key.startswith(_KERAS_COPIES)}
        originals = Counter(map(self._kind, paths.keys() - copies))
        if Counter(map(self._kind, copies)) <= originals:
            paths = {key: path for key, path in paths.items() if key not in copies}
        count = Counter(paths.values())
        # Two paths that differ only in escaped characters keep their escapes.
        return {
            (path if count[path] == 1 else key.removesuffix(_VALUE)): key
            for key, path in paths.items()
        }

    def _kind(self, key: str) -> tuple[object, ...]:
        return (self.stored[key].dtype, tuple(self.stored[key].shape))

    def aliases(self) -> dict[str, str]:
        """Returns variable name -> object path, names of collections last."""
        graph = TrackableObjectGraph()
        with explained(self.prefix, self.what, DecodeError, of="its object graph"):
            graph.ParseFromString(self._tensor(OBJECT_GRAPH).item())
        path_of = {key: path for path, key in self.keys.items()}
        named: dict[str, set[str]] = defaultdict(set)
        for node in graph.nodes:
            for attribute in node.attributes:
                path = path_of.get(attribute.checkpoint_key)
                if path is not None and not path.startswith(_KERAS_COPIES):
                    named[attribute.full_name].add(path)
        collections = {
            object_path(match[1]): {path}
            for path, key in self.keys.items()
            if (match := _COLLECTION.fullmatch(key)) and f"{path[:-1]}1" not in self.keys
        }
        for name in collections:
            named.pop(name, None)
        return {
            name: paths.pop()
            for name, paths in (*sorted(named.items()), *sorted(collections.items()))
            if len(paths) == 1 and name and name not in self.keys and not _UNNAMED.fullmatch(name)
        }


def _position(path: str) -> tuple[str, tuple[int, ...]]:
    """Returns an object path without the numbers of elements of lists, and these numbers.

    The lists of layers of nested models are in the order of the outer ones.
    """
    numbers = tuple(map(int, _LIST_INDEX.findall(path)))
    return _NESTED.sub("_operations//", _LIST_INDEX.sub("", path)), numbers


def object_path(key: str) -> str:
    """Returns the path of attributes to a saved value, without escapes."""
    path = key.removesuffix(_VALUE).replace(_ATTRIBUTES, "/").replace(_SLOT, "/")
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", path)


def open_bundle(prefix: str) -> BundleReader:
    """Returns the reader of a bundle saved by name or by object."""
    reader = BundleReader(prefix)
    return ObjectBasedReader(prefix) if OBJECT_GRAPH in reader.stored else reader


def open_saved_model(directory: str) -> CheckpointReader:
    """Returns the reader of the variables of a SavedModel, saved by TensorFlow 1 or 2.

    Raises:
      CheckpointError: when it has no variables, because it is a frozen graph, or is damaged.
    """
    prefix = f"{directory.rstrip('/')}/{_VARIABLES}"
    return RenamedReader(open_bundle(prefix), prefix, directory, format="SavedModel")


def require_shards(prefix: str, needed: int) -> None:
    """Checks that all shards of the bundle `prefix` exist and together hold `needed` bytes.

    Raises:
      CheckpointError: when shards are missing or truncated.
    """
    directory, name = os.path.split(prefix)
    paths = files.matching(directory, f"{glob.escape(name)}.data-*-of-*")
    count = max((match[2] for path in paths if (match := _SHARD.fullmatch(path))), default="00001")
    shards = [
        os.path.join(directory, f"{name}.data-{shard:05d}-of-{count}")
        for shard in range(int(count))
    ]
    missing = [path for path in shards if path not in paths]
    for path in paths:
        files.require_regular(path)
    size = sum(files.size(path) for path in shards if path in paths)
    if missing:
        state = f"{len(missing)} of its {len(shards)} data shards are missing"
        cause = f"there is no {', '.join(missing)}"
    elif size < needed:
        state = "its data is truncated"
        cause = f"its tensors take {needed:,} bytes, its data files hold {size:,}"
    else:
        return
    remedy = "copy the data files again, or name another checkpoint"
    raise CheckpointError.of(f"{prefix} cannot be read: {state}", cause, remedy)


def without_wildcards(prefix: str) -> str:
    """Returns a prefix of the same bundle that TensorFlow does not take for a pattern.

    It takes `*`, `?`, `[` and a backslash for one even where it opens a single file.
    """
    if not _WILDCARD.search(prefix):
        return prefix
    directory, name = os.path.split(os.path.abspath(prefix))
    paths = files.matching(directory, f"{glob.escape(name)}.*")
    folder = _links(os.path.join(directory, name), tuple(sorted(paths)))
    return os.path.join(folder, _LINK)


@functools.cache
def _links(prefix: str, paths: tuple[str, ...]) -> str:
    folder = tempfile.mkdtemp(prefix="runner-links-")
    # Only then: TensorFlow's reader opens a file when it needs it.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in paths:
        os.symlink(path, os.path.join(folder, f"{_LINK}{path.removeprefix(prefix)}"))
    return folder
