"""Sharded safetensors: several files and an index that says which tensor is in which."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest, files
from runner.checkpoints.local_copy import local_copy
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    require_names,
    unreadable,
)
from runner.checkpoints.safetensors_file import SafetensorsReader
from runner.errors import CheckpointError, Problem

WEIGHT_MAP = "weight_map"
_WHAT = "an index of safetensors shards"


class SafetensorsShardsReader(CheckpointReader):
    """Reads the shards that the JSON index at `path` names; they lie beside it."""

    format = "sharded safetensors"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards do not agree on the tensors.
        """
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        held = {name: spec for each in specs.values() for name, spec in each.tensors.items()}
        problems = [
            Problem(
                f"{self.path} says that {name} is in {shard}",
                f"{shard} holds no such tensor",
                "copy the shards again, or name another checkpoint",
            )
            for name, shard in self._weight_map.items()
            if name not in specs[shard].tensors
        ]
        problems += [
            Problem(
                f"{shard} holds {name}, which {self.path} does not have in it",
                "index and shards belong to different checkpoints",
                "copy the index and its shards again, or name another checkpoint",
            )
            for shard, spec in specs.items()
            for name in spec.tensors
            if self._weight_map.get(name) != shard
        ]
        if problems:
            raise CheckpointError(*problems)
        content = digest.of_parts(f"{shard} {spec.digest}" for shard, spec in specs.items())
        tensors = {name: held[name] for name in sorted(held)}
        return CheckpointSpec(self.path, None, tensors, self.format, content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        require_names(self.path, names, self._weight_map)
        for name in names:
            yield from self._shards[self._weight_map[name]].read([name])

    @functools.cached_property
    def _weight_map(self) -> Mapping[str, str]:
        try:
            entries = json.loads(files.read_text(self.path))[WEIGHT_MAP]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(self.path, _WHAT, error) from error
        if not isinstance(entries, dict) or not all(_is_name(each) for each in entries.values()):
            raise unreadable(self.path, _WHAT, f"{WEIGHT_MAP} does not map tensors to file names")
        return entries

    @functools.cached_property
    def _shards(self) -> Mapping[str, SafetensorsReader]:
        folder = os.path.dirname(self.path)
        paths = {
            each: os.path.join(folder, each) for each in sorted(set(self._weight_map.values()))
        }
        missing = [path for path in paths.values() if not files.is_file(path)]
        if missing:
            raise CheckpointError(
                Problem(
                    f"{self.path} lacks {len(missing)} of its {len(paths)} shards",
                    "missing: " + ", ".join(missing),
                    "copy the missing files to the others, or name another checkpoint",
                )
            )
        return {each: SafetensorsReader(local_copy(path)) for each, path in paths.items()}


def _is_name(value: object) -> bool:
    # A name with a folder in it could lead anywhere.
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value
