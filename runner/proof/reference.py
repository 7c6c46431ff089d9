"""References: the inputs and outputs that the source of a model's weights has computed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.files import digest_of_file, local_copy
from runner.errors import CheckpointError, Problem, nearest

Arrays = Mapping[str, NDArray[Any]]
_PARTS = ("inputs", "outputs", "activations")
_METADATA = "metadata"
_SETTINGS = ("layout", "tolerance", "config", "modules", "framework")
_LAYOUTS = ("channels_first", "channels_last")
_LARGEST = 0.1


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
      metadata: `layout` (`channels_first`, `channels_last`), `tolerance` (relative), `config` (the
        source's `config.json`), `modules` (module -> its settings) and `framework` (what computed
        it, for readers alone), each of them optional.
    """

    path: str
    digest: str
    inputs: Arrays
    outputs: Arrays
    activations: Arrays
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
    try:
        digest = digest_of_file(copy := local_copy(path))
        file = np.load(copy, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds one array without a name")
        with file:
            arrays = {name: file[name] for name in file.files}
        metadata = json.loads(str(arrays.pop(_METADATA, "{}")))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        cause = str(error).partition("\n")[0] or type(error).__name__
        remedy = "record it by numpy.savez, as docs/how-to/prove.md shows"
        raise CheckpointError.of(f"{path} is not a reference", cause, remedy) from error
    parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in _PARTS}
    unknown = []
    for entry, array in arrays.items():
        part, _, name = entry.partition("/")
        if part in parts and (name or part != "activations"):
            parts[part][name] = array
        else:
            unknown.append(entry)
    problems = [*_problems(path, parts, metadata), *(_unknown(path, entry) for entry in unknown)]
    if problems:
        raise CheckpointError(*problems)
    return Reference(path, digest, **parts, metadata=metadata)


def _problems(path: str, parts: Mapping[str, Arrays], metadata: Any) -> Iterator[Problem]:
    if not parts["inputs"]:
        yield Problem(f"{path} has no inputs", "", "record them as `inputs` or `inputs/NAME`")
    if not parts["outputs"] and not parts["activations"]:
        remedy = "record `outputs`, `outputs/NAME` or `activations/MODULE`"
        yield Problem(f"{path} has neither outputs nor activations", "", remedy)
    for part, arrays in parts.items():
        if "" in arrays and len(arrays) > 1:
            yield Problem(f"{path} has `{part}` and `{part}/...`", "", f"name all: `{part}/NAME`")
        bad = [name for name, array in arrays.items() if not _is_usable(part, array)]
        if bad:
            entries = ", ".join(f"{part}/{name}".rstrip("/") for name in bad[:3])
            yield Problem(
                f"{path}: {entries} {'and others ' * (len(bad) > 3)}cannot be compared",
                "every value must be a finite number, and there must be one",
                "record it again; look where the source computes NaN or infinity",
            )
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


def _is_usable(part: str, array: NDArray[Any]) -> bool:
    if part == "inputs" and array.dtype.kind in "US":
        return True
    return array.size > 0 and array.dtype.kind in "biuf" and bool(np.isfinite(array).all())


def _unknown(path: str, entry: str) -> Problem:
    choices = nearest(entry, [*_PARTS, _METADATA])
    return Problem(f"{path} has an entry {entry!r}", "no entry has this name", "", choices)
