"""The pages for programs without a run: their scripts do what they say."""

from __future__ import annotations

import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
LSTM = {
    "lstm.weight_ih_l0": (16, 3),
    "lstm.weight_hh_l0": (16, 4),
    "lstm.bias_ih_l0": (16,),
    "lstm.bias_hh_l0": (16,),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "pretrained").mkdir()
    conv = keras.layers.Conv2D(4, 3, name="conv", bias_initializer="ones")
    cnn = keras.Sequential([conv, keras.layers.GlobalAveragePooling2D()])
    cnn.build((None, 8, 8, 1))
    cnn.save(folder / "pretrained" / "cnn.keras")
    arrays = {name: np.ones(shape, np.float32) for name, shape in LSTM.items()}
    safetensors.numpy.save_file(arrays, folder / "pretrained" / "torch.safetensors")
    return folder


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("page", "started"), [("keras-fit", "cnn"), ("gradient-tape", "lstm")])
def test_the_script_runs_and_is_the_one_before_with_lines_added(
    page: str, started: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before, after, *more = re.findall(
        r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL
    )
    assert len(more) == 1
    lines = iter(after.splitlines())
    assert all(line in lines for line in before.splitlines())
    names = _run(after + more[0])
    moved = names["model"].get_layer(started).weights[-1].numpy()
    np.testing.assert_allclose(moved, 1.0 if started == "cnn" else 2.0, atol=0.1)


def _run(script: str) -> dict[str, Any]:
    file = Path("script.py")  # AutoGraph reads the source of a step from its file.
    file.write_text(script)
    return runpy.run_path(str(file))


def test_the_lines_of_the_readme_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    cnn = keras.Sequential([keras.layers.Conv2D(4, 3, name="conv")], name="cnn")
    cnn.build((None, 8, 8, 1))
    lstm = keras.layers.LSTM(4, name="lstm")
    lstm.build((None, 5, 3))
    model = {each.path: each for each in [*cnn.variables, *lstm.variables]}
    module = types.ModuleType("my_models")
    module.__dict__["build_model"] = lambda: model
    monkeypatch.setitem(sys.modules, "my_models", module)
    readme = (DOCS.parents[1] / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(_run(lines)["plan"].restored("cnn")) == 2
    np.testing.assert_allclose(model["cnn/conv/bias"].numpy(), 1.0)
