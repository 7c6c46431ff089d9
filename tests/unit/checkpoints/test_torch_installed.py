"""Files that the installed PyTorch and `transformers` write now agree with what they hold.

`TORCH_PYTHON` names a Python that has them, if the one of the tests does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import parse_dtype

DATA = Path(__file__).parents[2] / "data" / "torch"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)

pytestmark = pytest.mark.soak


def write(script: str, library: str, folder: Path) -> None:
    """Runs a script of the test data, or skips the test without its library."""
    imported = [PYTHON, "-c", f"import {library}"]
    if subprocess.run(imported, capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no {library}; TORCH_PYTHON can name a Python that has it")
    command = [PYTHON, str(DATA / script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_of_the_installed_pytorch_are_read(tmp_path: Path) -> None:
    write("make.py", "torch", tmp_path)
    files = sorted(tmp_path.glob("*.pt"))
    assert len(files) >= 4
    for file in files:
        reader = open_reader(str(file))
        spec = reader.spec()
        with np.load(file.with_suffix(".npz")) as arrays:
            assert {key.partition(":")[2] for key in arrays} == {*spec.tensors, *spec.tied}
            for key, array in arrays.items():
                dtype, _, name = key.partition(":")
                tensor = spec.find(name)
                assert tensor is not None
                ((_, value),) = reader.read([tensor.name])
                assert (value.dtype, value.shape) == (parse_dtype(dtype), array.shape)
                assert value.tobytes() == array.tobytes(), (file.name, name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models of `transformers`."""
    folder = tmp_path_factory.mktemp("models")
    write("pretrained.py", "transformers", folder)
    return folder


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("safetensors-whole", "safetensors"),
        ("safetensors-sharded", "sharded safetensors"),
        ("torch-whole", "PyTorch file"),
        ("torch-sharded", "sharded PyTorch file"),
    ],
)
def test_a_model_of_transformers_is_read(name: str, form: str, models: Path) -> None:
    reader = open_reader(*checkpoint_paths(str(models / name)))
    spec = reader.spec()
    assert spec.format == form
    values = dict(reader.read(list(spec.tensors)))
    with np.load(models / f"{name}.npz") as arrays:
        expected = dict(arrays)
    for tensor, array in expected.items():
        stored = spec.find(tensor)
        if stored is None:  # A safetensors file holds one of the names of a tied tensor.
            assert "safetensors" in form
            assert any(np.array_equal(array, value) for value in values.values())
        else:
            assert values[stored.name].tobytes() == array.tobytes(), tensor
    assert set(values) <= set(expected)
