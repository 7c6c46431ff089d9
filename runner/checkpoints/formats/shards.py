"""Checkpoints in several files beside an index, as Hugging Face and Keras save large models."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.formats.keras_names import keras_paths
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    explained,
    require_names,
    unreadable,
)
from runner.checkpoints.recognition import Format, recognise
from runner.errors import CheckpointError

WEIGHT_MAP = "weight_map"
_HDF5 = ".h5"
_FORMATS = (Format.HDF5, Format.SAFETENSORS, Format.TORCH)


class ShardsReader(CheckpointReader):
    """Reads the files that the JSON index at `path` names beside it, as one checkpoint.

    Hugging Face's indices map tensors to `.safetensors` or PyTorch files. Keras's map groups of
    variables, e.g. `/layers/dense/vars`, to one or more `.weights.h5` files.
    """

    what = "an index of shards"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when index and shards disagree on the tensors.
        """
        specs = self._specs
        first = next(iter(specs.values()))
        tensors = {name: spec.tensors[name] for spec in specs.values() for name in spec.tensors}
        aliases = {name: spec.aliases[name] for spec in specs.values() for name in spec.aliases}
        tied = {name: spec.tied[name] for spec in specs.values() for name in spec.tied}
        layers = {group: spec.layers[group] for spec in specs.values() for group in spec.layers}
        if layers:  # The variables of one layer may be in several shards.
            aliases = keras_paths(tensors, layers)

        def content() -> str:
            parts = (f"{shard} {spec.digest}" for shard, spec in specs.items())
            return files.digest_of_parts(parts)

        return replace(
            first,
            path=self.path,
            step=next((spec.step for spec in specs.values() if spec.step is not None), None),
            tensors=tensors,
            format=f"sharded {first.format}",
            content=content,
            aliases=aliases,
            tied=tied,
            layers=layers,
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        shards = {name: shard for shard, spec in self._specs.items() for name in spec.tensors}
        require_names(self.path, names, shards)
        for name in names:
            yield from self._shards[shards[name]].read([name])

    @functools.cached_property
    def _specs(self) -> Mapping[str, CheckpointSpec]:
        """Shard -> its spec, compared with the index."""
        specs = {shard: reader.spec() for shard, reader in self._shards.items()}
        stored = {
            (name, shard) for shard, spec in specs.items() for name in _listed_names(shard, spec)
        }
        listed = {(name, shard) for name, shards in self._weight_map.items() for shard in shards}
        if differing := sorted(stored ^ listed):
            names = (f"{name} in {shard}" for name, shard in differing)
            raise CheckpointError.of(
                f"{self.path} and its shards list different tensors",
                f"only one of the two has {', '.join(names)}",
                "copy the index and its shards again, or name another checkpoint",
            )
        return specs

    @functools.cached_property
    def _weight_map(self) -> Mapping[str, Sequence[str]]:
        """Tensor or group -> the files that hold it."""
        with explained(self.path, self.what):
            entries = json.loads(files.read_text(self.path))[WEIGHT_MAP]
            listed = {
                name: shards if isinstance(shards, list) else [shards]
                for name, shards in entries.items()
            }
        valid = (shards and all(map(_is_name, shards)) for shards in listed.values())
        if not listed or not all(valid):
            raise unreadable(
                self.path, self.what, f"{WEIGHT_MAP} does not map tensors to file names"
            )
        return listed

    @functools.cached_property
    def _shards(self) -> Mapping[str, CheckpointReader]:
        folder = os.path.dirname(self.path)
        shards = sorted({shard for shards in self._weight_map.values() for shard in shards})
        paths = {shard: os.path.join(folder, shard) for shard in shards}
        missing = [path for path in paths.values() if not files.is_file(path)]
        if missing:
            raise CheckpointError.of(
                f"{self.path} lacks {len(missing)} of its {len(paths)} shards",
                "missing: " + ", ".join(missing),
                "copy the missing files to the others, or name another checkpoint",
            )
        with explained(self.path, self.what):
            for path in paths.values():
                files.require_regular(path)
        return {name: _reader(files.local_copy(path)) for name, path in paths.items()}


def _listed_names(shard: str, spec: CheckpointSpec) -> Iterable[str]:
    """Returns what an index should list of a shard: tensors, or Keras's groups of variables."""
    if shard.endswith(_HDF5):
        return (f"/{name.rpartition('/')[0]}" for name in spec.tensors)
    return (*spec.tensors, *spec.tied)


def _reader(path: str) -> CheckpointReader:
    form = recognise(path)
    if form not in _FORMATS:
        raise unreadable(path, "a shard", f"it is a {form.title}")
    return form.open(path)


def _is_name(value: object) -> bool:
    # A name with a directory in it could lead anywhere.
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value
