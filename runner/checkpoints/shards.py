"""Checkpoints in several files beside an index, as Hugging Face's libraries save large models."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.array_files import SafetensorsReader
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    explained,
    require_names,
    unreadable,
)
from runner.checkpoints.torch_files import TorchReader
from runner.errors import CheckpointError, Problem

WEIGHT_MAP = "weight_map"


class ShardsReader(CheckpointReader):
    """Reads the `.safetensors` or PyTorch files that the JSON index at `path` names beside it."""

    what = "an index of shards"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards disagree on the tensors.
        """
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        stored = {
            (name, shard)
            for shard, spec in specs.items()
            for name in (*spec.tensors, *spec.aliases)
        }
        listed = set(self._weight_map.items())
        if differing := sorted(stored ^ listed):
            names = (f"{name} in {shard}" for name, shard in differing)
            raise CheckpointError(
                Problem(
                    f"{self.path} and its shards list different tensors",
                    f"only one of the two has {', '.join(names)}",
                    "copy the index and its shards again, or name another checkpoint",
                )
            )
        tensors = {name: spec.tensors[name] for spec in specs.values() for name in spec.tensors}
        aliases = {name: spec.aliases[name] for spec in specs.values() for name in spec.aliases}

        def content() -> str:
            parts = (f"{shard} {spec.digest}" for shard, spec in specs.items())
            return files.digest_of_parts(parts)

        kind = f"sharded {next(iter(specs.values())).format}"
        return CheckpointSpec(self.path, None, tensors, kind, content, aliases=aliases)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._weight_map)
        for name in names:
            yield from self._shards[self._weight_map[name]].read([name])

    @functools.cached_property
    def _weight_map(self) -> Mapping[str, str]:
        with explained(self.path, self.what):
            shards = json.loads(files.read_text(self.path))[WEIGHT_MAP]
        if not shards or not isinstance(shards, dict) or not all(map(_is_name, shards.values())):
            raise unreadable(
                self.path, self.what, f"{WEIGHT_MAP} does not map tensors to file names"
            )
        return shards

    @functools.cached_property
    def _shards(self) -> Mapping[str, CheckpointReader]:
        folder = os.path.dirname(self.path)
        shards = sorted(set(self._weight_map.values()))
        paths = {shard: os.path.join(folder, shard) for shard in shards}
        missing = [path for path in paths.values() if not files.is_file(path)]
        if missing:
            raise CheckpointError(
                Problem(
                    f"{self.path} lacks {len(missing)} of its {len(paths)} shards",
                    "missing: " + ", ".join(missing),
                    "copy the missing files to the others, or name another checkpoint",
                )
            )
        return {name: _reader(files.local_copy(path)) for name, path in paths.items()}


def _reader(path: str) -> CheckpointReader:
    return SafetensorsReader(path) if path.endswith(".safetensors") else TorchReader(path)


def _is_name(value: object) -> bool:
    # A name with a directory in it could lead anywhere.
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value
