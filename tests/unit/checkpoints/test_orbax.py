from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError

DATA = Path(__file__).parents[2] / "data" / "orbax"


@pytest.mark.parametrize("name", ["folders", "manager"])
def test_every_value_is_what_orbax_saved(name: str) -> None:
    (path,) = checkpoint_paths(str(DATA / name))
    reader = open_reader(path)
    names = ["params/Dense_0/bias", "params/Dense_0/kernel", "step"]
    assert sorted(reader.spec().tensors) == names
    bias, kernel, step = (value for _, value in reader.read(names))
    assert kernel.tolist() == np.arange(24.0).reshape(4, 6).tolist()
    assert (bias.dtype, bias.tolist()) == (ml_dtypes.bfloat16, [1.5] * 6)
    assert step == 20


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    copy = shutil.copytree(DATA / "manager", tmp_path / "a #1%20")
    (path,) = checkpoint_paths(str(copy))
    assert [value for _, value in open_reader(path).read(["step"])] == [20]


@pytest.mark.parametrize(
    ("source", "which", "step"),
    [("", "latest", 20), ("", "10", 10), ("#10", "latest", 10)],
)
def test_a_directory_of_steps_has_a_newest_and_chosen_ones(
    source: str, which: str, step: int
) -> None:
    (path,) = checkpoint_paths(f"orbax:{DATA / 'manager'}{source}", which)
    assert open_reader(path).spec().step == step


def test_a_changed_value_changes_the_digest(tmp_path: Path) -> None:
    copy = shutil.copytree(DATA / "folders", tmp_path / "copy")
    digest = open_reader(str(copy)).spec().digest
    (chunk,) = (copy / "params.Dense_0.bias").glob("[0-9]*")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="that was pinned"):
        open_reader(str(copy), digest)


@pytest.mark.parametrize(
    "metadata", ["", "{", "[]", "{}", json.dumps({"tree_metadata": {"a": {}}})]
)
def test_damaged_metadata_is_an_error_that_names_the_directory(
    metadata: str, tmp_path: Path
) -> None:
    (tmp_path / "_METADATA").write_text(metadata)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        open_reader(str(tmp_path)).spec()


def test_without_tensorstore_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(CheckpointError, match="pip install tensorstore"):
        open_reader(str(DATA / "folders")).spec()
