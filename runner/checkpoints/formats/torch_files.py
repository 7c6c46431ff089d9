"""Files of `torch.save`, read without PyTorch: `.pt`, `.pth`, `.bin` and Lightning's `.ckpt`.

Two layouts exist: a zip archive since PyTorch 1.6, and before a sequence of pickles with the bytes
of all storages after them (`torch/serialization.py`). In both, a pickle describes tensors as views
of storages. It is read as data (`pickle_nodes`), and a value when it is asked for.
"""

from __future__ import annotations

import functools
import io
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import archives, files
from runner.checkpoints.formats.pickle_nodes import MAX_BYTES, Node, PickleError, read_pickle
from runner.checkpoints.formats.torch_objects import (
    StateDict,
    StorageView,
    state_dict,
    storage_dtype,
)
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    Span,
    TensorSpec,
    explained,
    is_number,
    parse_dtype,
    read_array,
    require_names,
)
from runner.checkpoints.recognition import TORCH_MAGIC

_PROTOCOL = 1001
# An expanded tensor repeats its storage's values; more than this is no honest one.
_MAX_EXPANDED_BYTES = 64 << 20


ByteOrder: TypeAlias = Literal["little", "big"]


@dataclass(frozen=True)
class TorchFile:
    """A file of `torch.save`.

    Attributes:
      root: the saved object.
      storages: key -> where the storage's bytes are.
      byteorder: the storages' byte order, as `sys.byteorder` has it.
    """

    root: Node
    storages: Mapping[str, Span]
    byteorder: ByteOrder


def read_zip(path: str) -> TorchFile:
    """Reads the layout of PyTorch 1.6 and later.

    Raises:
      PickleError: when it is not such a file, or a damaged one.
      zipfile.BadZipFile, OSError: when it cannot be read.
    """
    with files.reading(path) as file, archives.opened_archive(path) as archive:
        members = {}
        for member in archive.infolist():
            if member.filename in members:
                raise PickleError(f"it has two members {member.filename!r}")
            members[member.filename] = member
        folder = _folder(members)
        pickled = members[f"{folder}data.pkl"]
        if pickled.file_size > MAX_BYTES:
            raise PickleError(f"{pickled.filename} is larger than {MAX_BYTES:,} bytes")
        root, _ = read_pickle(io.BytesIO(archive.read(pickled)))
        order = members.get(f"{folder}byteorder")
        byteorder = b"little" if order is None else archive.read(order)
        if byteorder not in (b"little", b"big"):
            raise PickleError(f"its byte order is {byteorder[:20]!r}, neither b'little' nor b'big'")
        prefix = f"{folder}data/"
        storages = {
            name.removeprefix(prefix): Span(archives.stored_at(file, member), member.file_size)
            for name, member in members.items()
            if name.startswith(prefix)
        }
    return TorchFile(root, storages, "big" if byteorder == b"big" else "little")


def _folder(members: Mapping[str, object]) -> str:
    """Returns the folder in the archive that holds everything, e.g. `archive/`."""
    (pickled,) = [name for name in members if name.split("/")[1:] == ["data.pkl"]] or [""]
    folder = pickled.removesuffix("data.pkl")
    if not folder:
        raise PickleError("it has no data.pkl")
    if f"{folder}constants.pkl" in members:
        raise PickleError(
            "it is a TorchScript program; save its values with PyTorch: "
            "torch.save(torch.jit.load(PATH).state_dict(), OTHER_PATH)"
        )
    return folder


def read_legacy(path: str) -> TorchFile:
    """Reads the layout before PyTorch 1.6, which `_use_new_zipfile_serialization=False` writes.

    Raises:
      PickleError: when it is not such a file, or a damaged one.
      OSError: when it cannot be read.
    """
    size = files.size(path)
    with files.reading(path) as file, files.mapped(path, min(size, MAX_BYTES)) as head:
        magic, protocol, system = (read_pickle(head)[0] for _ in range(3))  # type: ignore[arg-type]
        if magic != int.from_bytes(TORCH_MAGIC, "little") or protocol != _PROTOCOL:
            raise PickleError(f"its protocol is {protocol!r}, where PyTorch writes {_PROTOCOL}")
        is_little = system.get("little_endian") if isinstance(system, dict) else None
        if not isinstance(is_little, bool):
            raise PickleError("it does not say its byte order")
        byteorder: ByteOrder = "little" if is_little else "big"
        root, references = read_pickle(head)  # type: ignore[arg-type]
        keys, _ = read_pickle(head)  # type: ignore[arg-type]
        # Whole modules also refer to their classes' source code.
        views = [storage_dtype(r) for r in references if r.value[:1] != ("module",)]
        itemsizes = {key: parse_dtype(dtype).itemsize for key, dtype in views}
        storages = {}
        position = head.tell()
        for key in keys:
            if key not in itemsizes:
                raise PickleError(f"it stores {key!r}, which nothing refers to")
            file.seek(position)
            count = int.from_bytes(file.read(8), byteorder, signed=True)
            span = Span(position + 8, count * itemsizes[key])
            position = span.start + span.size
            if count < 0 or position > size:
                raise PickleError(f"storage {key} goes beyond the end of the file")
            storages[key] = span
    return TorchFile(root, storages, byteorder)


class TorchReader(CheckpointReader):
    """Reads the tensors of one mapping of the file at `path`.

    A file may hold several mappings, e.g. a model's and its moving average's. `path#NAME` chooses
    one; by default it is the state dict, see `torch_objects.state_dict`.
    """

    format, what = "PyTorch file", "a file of torch.save"

    def __init__(self, path: str, mapping: str = "") -> None:
        self.path, self._mapping = path, mapping

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        state = self._state_dict
        tensors = {
            name: TensorSpec(name, tensor.shape, tensor.dtype)
            for name, tensor in state.tensors.items()
        }
        with explained(self.path, self.what):
            content = files.digest_later(self.path)
        path = f"{self.path}#{state.mapping}" if state.mapping else self.path
        return CheckpointSpec(path, state.step, tensors, self.format, content, tied=state.tied)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        tensors = self._state_dict.tensors
        require_names(self.path, names, tensors)
        with explained(self.path, self.what), open(self.path, "rb") as file:
            for name in names:
                with explained(self.path, self.what, of=name):
                    value = self._value(file, tensors[name])
                yield name, value

    @functools.cached_property
    def _file(self) -> TorchFile:
        with explained(self.path, self.what):
            return read_zip(self.path) if zipfile.is_zipfile(self.path) else read_legacy(self.path)

    @functools.cached_property
    def _state_dict(self) -> StateDict:
        with explained(self.path, self.what):
            state = state_dict(self._file.root, self.path, self._mapping)
            for name, tensor in state.tensors.items():
                if is_number(tensor.dtype):
                    _check_bounds(name, tensor, self._file.storages)
        return state

    def _value(self, file: BinaryIO, tensor: StorageView) -> NDArray[Any]:
        dtype = parse_dtype(tensor.dtype)
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, dtype)
        start = self._file.storages[tensor.key].start + tensor.offset * dtype.itemsize
        is_whole = tensor.strides == _c_strides(tensor.shape)
        shape = tensor.shape if is_whole else (_extent(tensor),)
        value = read_array(file, shape, dtype, start=start, byteorder=self._file.byteorder)
        if not is_whole:
            strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
            value = np.lib.stride_tricks.as_strided(value, tensor.shape, strides).copy()
        if tensor.is_conjugate:
            value = value.conj()
        if tensor.is_negative:
            value = -value
        return value


def _check_bounds(name: str, tensor: StorageView, storages: Mapping[str, Span]) -> None:
    """Checks that a tensor lies within its storage, in integers of any size.

    Raises:
      PickleError: when it does not.
    """
    if 0 in tensor.shape:
        return
    itemsize = parse_dtype(tensor.dtype).itemsize
    span = storages.get(tensor.key)
    if span is None:
        raise PickleError(f"{name} is in storage {tensor.key!r}, which the file does not hold")
    if (tensor.offset + _extent(tensor)) * itemsize > span.size:
        raise PickleError(f"{name} goes beyond its storage of {span.size:,} bytes")
    size = itemsize * math.prod(tensor.shape)
    if size > max(span.size, _MAX_EXPANDED_BYTES):
        raise PickleError(f"{name} repeats its storage of {span.size:,} bytes to {size:,}")


def _extent(tensor: StorageView) -> int:
    """Returns the number of elements of the storage from a tensor's first to its last."""
    sizes = zip(tensor.shape, tensor.strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes)


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
