from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from runner.checkpoints.safetensors_files import SafetensorsShardsReader
from runner.errors import CheckpointError


def _write(folder: Path, weight_map: object, **shards: list[str]) -> SafetensorsShardsReader:
    for shard, names in shards.items():
        tensors = {name: np.ones(2, np.float32) for name in names}
        safetensors.numpy.save_file(tensors, folder / f"{shard}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return SafetensorsShardsReader(str(index))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    reader = _write(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, one=["a"])
    with pytest.raises(CheckpointError, match=r"lacks 1 of its 2 shards\n.*two.safetensors"):
        reader.spec()


def test_all_disagreements_are_reported_at_once(tmp_path: Path) -> None:
    weight_map = {"a": "one.safetensors", "b": "one.safetensors"}
    reader = _write(tmp_path, weight_map, one=["a", "c"])
    with pytest.raises(CheckpointError, match=r"says that b is in one.safetensors") as caught:
        reader.spec()
    assert len(caught.value.problems) == 2
    assert "one.safetensors holds c, which" in str(caught.value)


@pytest.mark.parametrize("weight_map", [["a"], {"a": "../a.safetensors"}, {"a": 1}, {"a": ".."}])
def test_an_index_that_names_no_files_beside_it_is_refused(
    weight_map: object, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="weight_map does not map tensors to file names"):
        _write(tmp_path, weight_map).spec()


@pytest.mark.parametrize("content", ["{", "[]", "{}", "\x00"])
def test_a_damaged_index_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read as an index of safetensors shards"):
        SafetensorsShardsReader(str(path)).spec()
