"""References: the inputs and outputs that the source of a model's weights has computed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.files import digest_of_file, local_copy
from runner.errors import CheckpointError, Problem, nearest

Arrays = Mapping[str, NDArray[Any]]
_PARTS = ("inputs", "outputs", "activations")
_METADATA = "metadata"
_HELD_BYTES = 16 << 20
_SETTINGS = ("layout", "tolerance", "config", "modules", "framework")
_LAYOUTS = ("channels_first", "channels_last")
_LARGEST = 0.1
# Of a file that is something else, not every entry is listed.
_LISTED = 3


@dataclass(frozen=True)
class Reference:
    """Inputs of a model, and the values that the source of its weights computes from them.

    Arrays have the layout and dtype of the source, such as NCHW for images of PyTorch.

    Attributes:
      path: the file.
      digest: `sha256:<hex>` of the file.
      inputs: name or position -> array; the name of an only input is empty.
      outputs: likewise.
      activations: name of a module in the source -> its output, in the order of computation.
      outlines: module -> an array of the shape and dtype of its activation, without memory.
      metadata: `layout` (`channels_first`, `channels_last`), `tolerance` (relative), `config` (the
        source's `config.json`), `modules` (module -> its settings) and `framework` (what computed
        it, for readers alone), each of them optional.
    """

    path: str
    digest: str
    inputs: Arrays
    outputs: Arrays
    activations: Arrays
    outlines: Arrays
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels_first(self) -> bool:
        """Whether the channels of images come before their height."""
        return self.metadata.get("layout") == "channels_first"


def read_reference(path: str) -> Reference:
    """Reads a reference, an `.npz` file with the entries of `docs/how-to/prove.md`.

    Raises:
      CheckpointError: with everything that is wrong with the file.
    """
    parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in _PARTS}
    unknown, unusable = [], dict[str, tuple[str, str]]()
    try:
        digest = digest_of_file(copy := local_copy(path))
        if not zipfile.is_zipfile(copy):
            raise ValueError("an .npz file is a zip archive, and this is none, or not a whole one")
        with np.load(copy, allow_pickle=False) as file:
            names = [name for name in file.files if name != _METADATA]
            metadata = json.loads(str(file.get(_METADATA, "{}")))
            for entry in names:
                part, _, name = entry.partition("/")
                array = file[entry]
                if part not in parts or not (name or part != "activations"):
                    unknown.append(entry)
                    continue
                if fault := _fault(part, array):
                    unusable[entry] = fault
                is_small = part != "activations"
                parts[part][name] = array if is_small else _outline(array)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        cause = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            cause = error.strerror
        elif isinstance(error, json.JSONDecodeError):
            cause = f"`metadata` is not JSON: {cause}"
        remedy = "record it by numpy.savez, as docs/how-to/prove.md shows"
        raise CheckpointError.of(f"{path} is not a reference", cause, remedy) from error
    problems = [
        *_problems(path, parts, unusable, metadata),
        *(_unknown(path, entry) for entry in unknown[:_LISTED]),
    ]
    if problems:
        raise CheckpointError(*problems)
    return Reference(
        path,
        digest,
        inputs=parts["inputs"],
        outputs=parts["outputs"],
        activations=StoredArrays(copy, parts["activations"]),
        outlines=parts["activations"],
        metadata=metadata,
    )


def _outline(array: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


class Recent:
    """Reads arrays by name, and holds the last ones, up to 16 MiB."""

    def __init__(self, read: Callable[[str], NDArray[Any]]) -> None:
        """Takes what reads an array."""
        self._read = read
        self._arrays: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str) -> NDArray[Any]:
        """Returns an array."""
        array = self._arrays.pop(name, None)
        if array is None:
            array = self._read(name)
        self._arrays[name] = array
        while sum(a.nbytes for a in self._arrays.values()) > _HELD_BYTES:
            del self._arrays[next(iter(self._arrays))]
        return array


class StoredArrays(Mapping[str, NDArray[Any]]):
    """The activations of an `.npz` file, which are read when they are asked for.

    All of a ResNet-50 at 224 pixels are 130 MB, more than its weights.
    """

    def __init__(self, path: str, names: Iterable[str]) -> None:
        """Takes the file and the modules."""
        self._path, self._names = path, dict.fromkeys(names)
        self._recent = Recent(self._read)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._recent(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _read(self, name: str) -> NDArray[Any]:
        with np.load(self._path, allow_pickle=False) as file:
            array: NDArray[Any] = file[f"activations/{name}"]
        return array


def _problems(
    path: str, parts: Mapping[str, Arrays], unusable: Mapping[str, tuple[str, str]], metadata: Any
) -> Iterator[Problem]:
    if not parts["inputs"]:
        yield Problem(f"{path} has no inputs", "", "record them as `inputs` or `inputs/NAME`")
    if not parts["outputs"] and not parts["activations"]:
        remedy = "record `outputs`, `outputs/NAME` or `activations/MODULE`"
        yield Problem(f"{path} has neither outputs nor activations", "", remedy)
    for part, arrays in parts.items():
        if "" in arrays and len(arrays) > 1:
            yield Problem(f"{path} has `{part}` and `{part}/...`", "", f"name all: `{part}/NAME`")
    for fault in dict.fromkeys(unusable.values()):
        bad = [entry for entry in unusable if unusable[entry] == fault]
        entries = ", ".join(bad[:_LISTED]) + " and others" * (len(bad) > _LISTED)
        yield Problem(f"{path}: {entries} cannot be compared", *fault)
    if isinstance(metadata, dict):
        yield from _of_metadata(path, metadata)
    else:
        yield Problem(f"{path}: `metadata` is no mapping", "", "record json.dumps({...})")


def _of_metadata(path: str, metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for key in metadata.keys() - {*_SETTINGS}:
        cause, choices = "no entry of the metadata has this name", nearest(key, _SETTINGS)
        yield Problem(f"{path}: `metadata` has {key!r}", cause, "", choices)
    tolerance = metadata.get("tolerance", 0)
    # bool is an int, and NaN is not between the two.
    if type(tolerance) not in (int, float) or not 0 <= tolerance <= _LARGEST:
        cause = f"it is a relative difference, such as 1e-4; more than {_LARGEST} proves nothing"
        yield Problem(f"{path}: the tolerance is {tolerance!r}", cause)
    if (layout := metadata.get("layout", _LAYOUTS[0])) not in _LAYOUTS:
        yield Problem(f"{path}: the layout is {layout!r}", f"it is {' or '.join(_LAYOUTS)}")
    for key in ("config", "modules"):
        if not isinstance(value := metadata.get(key, {}), dict):
            yield Problem(f"{path}: `{key}` of the metadata is {value!r}", "it is a mapping")


def _fault(part: str, array: NDArray[Any]) -> tuple[str, str] | None:
    """Returns why an array cannot be compared, if it cannot, and the remedy."""
    if part == "inputs" and array.dtype.kind in "US":
        return None
    if array.dtype.kind not in "biuf":
        cause = f"the dtype is {array.dtype}, and only real numbers are compared"
        return cause, "record real numbers, such as float32, or leave it out"
    if not array.size:
        return "there is no value", "record a batch of one example or more"
    if not np.isfinite(array).all():
        remedy = "record it again; look where the source computes NaN or infinity"
        return "every value must be a finite number", remedy
    return None


def _unknown(path: str, entry: str) -> Problem:
    choices = nearest(entry, [*_PARTS, _METADATA])
    return Problem(f"{path} has an entry {entry!r}", "no entry has this name", "", choices)
