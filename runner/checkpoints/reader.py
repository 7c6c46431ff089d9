"""The interface of all readers of checkpoints: tensor specs from metadata, values on demand."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Literal

import ml_dtypes  # also registers bfloat16 and similar types with NumPy
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.files import DAMAGE
from runner.errors import CheckpointError, Problem, nearest

GLOBAL_STEP = "global_step"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a checkpoint or a variable in a graph.

    Attributes:
      name: as the checkpoint or the graph spells it.
      shape: the dimensions; empty for a scalar.
      dtype: NumPy's name of the element type, e.g. `float32` or `bfloat16`; `string` for strings
        of any kind.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size of its values; 0 for types without a fixed size, such as strings."""
        if not is_number(self.dtype):
            return 0
        return parse_dtype(self.dtype).itemsize * math.prod(self.shape)


def parse_dtype(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype of this name, including the types of `ml_dtypes` such as `bfloat16`.

    Raises:
      ValueError: when `name` is not a type of numbers or booleans, e.g. `string`.
    """
    try:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise ValueError(f"{name} is not a type of numbers") from error
    if dtype.kind not in "biufc" and not hasattr(ml_dtypes, name):
        raise ValueError(f"{name} is not a type of numbers")
    return dtype


def is_number(name: str) -> bool:
    """Returns whether `parse_dtype` knows the type."""
    try:
        parse_dtype(name)
    except ValueError:
        return False
    return True


def is_read(dtype: str) -> bool:
    """Returns whether tensors of a type can be read; PyTorch's sparse ones cannot, for example."""
    return " of " not in dtype


@dataclass(frozen=True)
class Span:
    """A range of a file's bytes."""

    start: int
    size: int


@dataclass(frozen=True)
class CheckpointSpec:
    """The metadata of a checkpoint.

    Attributes:
      path: the path that its reader opens; for TensorFlow bundles the prefix.
      step: the global step it was saved at; None when it records none.
      tensors: tensor name -> spec.
      format: the name of the format, e.g. `TensorFlow bundle`.
      content: returns the digest; see `files.digest_later`.
      aliases: other names of some tensors -> the name in `tensors`; in an object-based checkpoint
        a tensor is named by an object path, and the variable's name is an alias.
      tied: further names under which a file stores some tensors -> the name in `tensors`.
      layers: group -> name of the layer, in Keras's weights files; the model's group is empty.
      keys: the keys under which TensorFlow's index holds the tensors of an object-based checkpoint,
        such as `a/.ATTRIBUTES/VARIABLE_VALUE` -> the name in `tensors`.
      order: name or alias of a variable of a Keras model -> its position in the saved model: a
        path without numbers, and the numbers; comparable where the paths are the same.
      trained: group of a layer -> whether it trained, in the order of the saved model; of `.keras`
        archives of functional and sequential models.
      place: returns the tensor for a variable of a model that has a name in the checkpoint by the
        model's structure; see `weights_layout.Places.place`.
      unnamed_slots: why the slots of the checkpoint's optimizer have no names; empty if they have.
    """

    path: str
    step: int | None
    tensors: Mapping[str, TensorSpec]
    format: str = ""
    content: Callable[[], str] = field(default=str, repr=False, compare=False)
    aliases: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    order: Mapping[str, tuple[str, tuple[int, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    trained: Mapping[str, bool] = field(default_factory=dict, repr=False, compare=False)
    place: Callable[[str, str], str | None] | None = field(default=None, repr=False, compare=False)
    unnamed_slots: str = field(default="", repr=False, compare=False)

    def find(self, name: str) -> TensorSpec | None:
        """Returns the tensor with a name, an alias or a key, or None."""
        if name not in self.tensors:
            name = self.other_names.get(name, self.keys.get(name, name))
        return self.tensors.get(name)

    @functools.cached_property
    def other_names(self) -> Mapping[str, str]:
        """The aliases and the tied names -> the name in `tensors`."""
        return {**self.tied, **self.aliases}

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the content, which identifies a pinned checkpoint; empty without one.

        For TensorFlow bundles and zip archives it is computed from the checksums that they hold of
        every tensor; other files are read whole, the first time.

        Raises:
          CheckpointError: when a file has changed since the spec was read, or cannot be read.
        """
        return self.content()


class CheckpointReader(abc.ABC):
    """Reads one checkpoint, of any format; nothing is ever written.

    A format implements `spec` and `read`, or derives from `FileReader`.
    Values are NumPy arrays with the shape and dtype of their spec, in this machine's byte order.
    bfloat16 and similar types have the dtypes of `ml_dtypes`; strings are arrays of `bytes` or
    `str` (dtype kind O, S or U).
    """

    @abc.abstractmethod
    def spec(self) -> CheckpointSpec:
        """Returns the names, shapes and dtypes of all tensors; reads no value but the step.

        Raises:
          CheckpointError: when the checkpoint is damaged or of another format.
        """

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yields (name, value) for the names in their order, reading one tensor at a time.

        A value is in memory only as long as the caller keeps it. It may be a read-only view of
        the file.

        Args:
          names: names in `spec().tensors`, not aliases.

        Raises:
          CheckpointError: when a name is unknown, or a tensor's bytes are damaged or missing.
        """


class FileReader(CheckpointReader):
    """A reader of the one file at `path`.

    A format implements `tensors`, `tensor_spec` and `value`; Keras's override more.

    Attributes:
      path: the file.
      format: the name of the format, for `CheckpointSpec`.
      what: what the file should be, for errors; e.g. `an .npy file`.
      errors: exceptions of the format's library, besides `DAMAGE`.
      digest: computes the digest of the file at a path.
    """

    format: str
    what: str
    errors: tuple[type[Exception], ...] = ()
    digest: Callable[[str], str] = staticmethod(files.digest_of_file)

    def __init__(self, path: str) -> None:
        self.path = path

    @abc.abstractmethod
    def tensors(self) -> contextlib.AbstractContextManager[Mapping[str, Any]]:
        """Opens the file and yields tensor name -> `entry` for the two methods below."""

    @abc.abstractmethod
    def tensor_spec(self, name: str, entry: Any) -> TensorSpec:
        """Returns the spec of a tensor, from metadata."""

    @abc.abstractmethod
    def value(self, name: str, entry: Any) -> NDArray[np.generic]:
        """Reads a tensor."""

    def step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        """Returns the tensor that holds the global step, or None."""
        return GLOBAL_STEP if is_count(tensors.get(GLOBAL_STEP)) else None

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with explained(self.path, self.what, *self.errors), self.tensors() as entries:
            tensors = {name: self.tensor_spec(name, entries[name]) for name in sorted(entries)}
            name = self.step_name(tensors)
            step = None if name is None else int(self.value(name, entries[name]).item())
            content = files.digest_later(self.path, self.digest)
        return CheckpointSpec(self.path, step, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with explained(self.path, self.what, *self.errors), self.tensors() as entries:
            require_names(self.path, names, entries)
            for name in names:
                yield name, self.value(name, entries[name])


def read_array(
    file: BinaryIO,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    start: int,
    byteorder: Literal["little", "big"] = "little",
) -> NDArray[Any]:
    """Reads an array that a local file stores in C order from `start`.

    It is read, as the pages of a memory map count as memory of the process until the file is
    closed: 98 MB for a ResNet-50.

    Raises:
      ValueError: when the file ends before the array.
    """
    size = math.prod(shape) * dtype.itemsize
    ends_early = ValueError("the file is shorter than its tensors")
    if start + size > os.fstat(file.fileno()).st_size:
        raise ends_early
    value: NDArray[Any] = np.empty(shape, dtype)
    if size:
        file.seek(start)
        if file.readinto(value.reshape(-1).view(np.uint8).data) < size:  # type: ignore[attr-defined]
            raise ends_early
    return value if byteorder == sys.byteorder else value.byteswap()


def is_count(spec: TensorSpec | None) -> bool:
    """Returns whether a tensor is an integer scalar, as a global step is."""
    return spec is not None and spec.shape == () and spec.dtype.startswith(("int", "uint"))


class RenamedReader(CheckpointReader):
    """Reads the checkpoint of another reader under another path, which specs and errors name.

    Args:
      reader: reads the checkpoint, such as a copy of a remote one.
      inner: the path that it reads.
      path: the path to name instead.
      format: the name of the format; by default the reader's.
    """

    def __init__(self, reader: CheckpointReader, inner: str, path: str, format: str = "") -> None:
        self._reader, self._inner, self._path, self._format = reader, inner, path, format

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._renamed():
            spec = self._reader.spec()
        path = spec.path.replace(self._inner, self._path, 1)
        return replace(spec, path=path, format=self._format or spec.format)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self._renamed():
            yield from self._reader.read(names)

    @contextlib.contextmanager
    def _renamed(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            problems = (
                replace(problem, state=problem.state.replace(self._inner, self._path))
                for problem in error.problems
            )
            raise CheckpointError(*problems) from error


@contextlib.contextmanager
def explained(path: str, what: str, *errors: type[Exception], of: str = "") -> Iterator[None]:
    """Turns the exceptions of a library on a damaged file into a `CheckpointError`.

    Args:
      path: the checkpoint.
      what: what the file should be; see `unreadable`.
      *errors: exceptions of the library, besides `DAMAGE`.
      of: the part of the checkpoint that is read, for the message.
    """
    damage: tuple[type[Exception], ...] = (*DAMAGE, *errors)
    try:
        yield
    except damage as error:
        raise unreadable(path, what, f"{of}: {error}" if of else error) from error


def unreadable(path: str, what: str, cause: object) -> CheckpointError:
    """Returns the error of a checkpoint that is damaged.

    Args:
      path: the checkpoint, or its damaged file.
      what: what the file should be, after `cannot be read as`; e.g. `an HDF5 file`.
      cause: the reason; only the first line of an exception is shown.
    """
    lines = str(cause).splitlines() or [type(cause).__name__]
    return CheckpointError.of(
        f"{path} cannot be read as {what}",
        lines[0],
        "name another checkpoint, or restore its files from a copy",
    )


def require_names(path: str, names: Sequence[str], tensors: Mapping[str, object]) -> None:
    """Raises a `CheckpointError` that lists every name that is not among its `tensors`."""
    problems = [
        Problem(
            f"{path} holds no tensor {name!r}",
            f"it holds {len(tensors)} tensors, none of that name",
            "name one of its tensors; `runner inspect` lists them",
            nearest(name, tensors),
        )
        for name in names
        if name not in tensors
    ]
    if problems:
        raise CheckpointError(*problems)
