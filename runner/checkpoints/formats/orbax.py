"""Orbax's checkpoints of JAX programs: directories of arrays, which TensorStore reads.

`_METADATA` lists the arrays of a directory that `StandardCheckpointer` or `PyTreeCheckpointer`
saved. A `CheckpointManager` keeps one such directory, `default` or `state`, for each step.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import archives, files
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    explained,
    require_names,
)
from runner.errors import CheckpointError

METADATA = "_METADATA"


class OrbaxReader(CheckpointReader):
    """Reads the directory at `path`; names join the keys of the saved tree by slashes."""

    format, what = "Orbax checkpoint", "a directory of Orbax"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when TensorStore is not installed.
        """
        with explained(self.path, self.what):
            paths = sorted(path for path in Path(self.path).rglob("*") if not path.is_dir())
            for path in paths:
                files.require_regular(str(path))
            tensors = {
                name: TensorSpec(name, tuple(array.shape), array.dtype.name)
                for name, array in self._arrays.items()
            }
            declared = sum(tensor.bytes for tensor in tensors.values())
            if excess := archives.implausible(declared, sum(path.stat().st_size for path in paths)):
                raise ValueError(excess)
            opened = [files.digest_later(str(path)) for path in paths]
        names = [str(path.relative_to(self.path)) for path in paths]

        def content() -> str:
            parts = (f"{name} {digest()}" for name, digest in zip(names, opened, strict=True))
            return files.digest_of_parts(parts)

        return CheckpointSpec(self.path, self._step, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._arrays)
        for name in names:
            with explained(self.path, self.what, of=name):
                value = np.asarray(self._arrays[name].read().result())
            yield name, value

    @functools.cached_property
    def _arrays(self) -> Mapping[str, Any]:
        """Tensor name -> TensorStore's array, which reads its metadata alone."""
        try:
            import tensorstore  # An extra, and slow to import.
        except ModuleNotFoundError as error:
            raise CheckpointError.of(
                f"{self.path} cannot be read",
                "Orbax's checkpoints are read by TensorStore, which is not installed",
                "install it: pip install tensorstore, or the runner's extra `orbax`",
            ) from error
        metadata = json.loads(files.read_text(os.path.join(self.path, METADATA)))
        driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
        # Where all chunks are stored, one that is not there is lost; TensorStore would give zeros.
        is_complete = metadata.get("store_array_data_equal_to_fill_value") is True
        # Absent in older versions, which kept an array in a folder of its own.
        is_ocdbt = os.path.isfile(os.path.join(self.path, "manifest.ocdbt"))
        folder = os.path.abspath(self.path)
        pending = {}
        for entry in metadata["tree_metadata"].values():
            keys = [str(part["key"]) for part in entry["key_metadata"]]
            name = ".".join(keys)
            if os.sep in name or entry["value_metadata"].get("skip_deserialize"):
                continue
            store: dict[str, Any] = {"driver": "file", "path": f"{folder}/{name}/"}
            if is_ocdbt:
                base = {"driver": "file", "path": f"{folder}/"}
                store = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            spec = {"driver": driver, "kvstore": store, "fill_missing_data_reads": not is_complete}
            pending["/".join(keys)] = tensorstore.open(spec)
        return {name: future.result() for name, future in pending.items()}

    @property
    def _step(self) -> int | None:
        """The step of a `CheckpointManager`, which names the directory above by it."""
        parent = os.path.basename(os.path.dirname(os.path.abspath(self.path)))
        return int(parent) if parent.isdecimal() else None
