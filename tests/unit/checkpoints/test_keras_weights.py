from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from runner.checkpoints.keras_files import KerasWeightsReader
from runner.errors import CheckpointError


def test_an_html_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.weights.h5"
    path.write_text("<html>404</html>")
    with pytest.raises(CheckpointError, match="cannot be read as a Keras weights file"):
        KerasWeightsReader(str(path)).spec()


def test_weights_without_an_optimizer_have_no_step(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 3), np.float32)
    spec = KerasWeightsReader(str(tmp_path / "w.h5")).spec()
    assert (spec.step, spec.aliases) == (None, {})


def test_a_file_of_other_datasets_is_listed_by_their_paths(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["encoder/w"] = np.ones(2)
        file["labels"] = ["cat", "dog"]
    tensors = KerasWeightsReader(str(tmp_path / "w.h5")).spec().tensors
    assert {name: spec.dtype for name, spec in tensors.items()} == {
        "encoder/w": "float64",
        "labels": "string",
    }
