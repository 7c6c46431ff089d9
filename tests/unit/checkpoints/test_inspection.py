"""Checkpoints as mappings, their differences, and statistics of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import runner
from runner.checkpoints.inspection import Statistics, statistics
from tests.conformance.goldens import save_npz


def test_a_checkpoint_is_a_mapping_whose_values_are_read_on_access(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_npz(path, kernel=np.ones((2, 3), np.float32), step=np.int64(7))
    checkpoint = runner.open_checkpoint(path)
    assert list(checkpoint) == ["kernel", "step"]
    assert (checkpoint.tensors["kernel"].shape, checkpoint.tensors["kernel"].dtype) == (
        (2, 3),
        "float32",
    )
    assert repr(checkpoint) == f"<NumPy archive {path}, 2 tensors>"
    np.testing.assert_array_equal(checkpoint["kernel"], np.ones((2, 3)))
    assert "kernle" not in checkpoint
    assert checkpoint.get("kernle") is None
    with pytest.raises(KeyError, match="nearest: kernel"):
        checkpoint["kernle"]
    assert not runner.checkpoints.diff(checkpoint, path)
    path.unlink()  # A value that was not read is not in memory.
    with pytest.raises(runner.RunnerError):
        checkpoint["step"]


def _compared(folder: Path, one: dict[str, Any], other: dict[str, Any]) -> Any:
    paths = save_npz(folder / "one.npz", **one), save_npz(folder / "other.npz", **other)
    return runner.checkpoints.diff(*paths)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (np.zeros(3), np.zeros(4), "shape [3] -> [4]"),
        (np.zeros(3, "f4"), np.zeros((3, 1)), "shape [3] -> [3, 1], dtype float32 -> float64"),
        (
            np.array([1, 2, 3], np.float32),
            np.array([1, 2.5, 5], np.float32),
            "2 of 3 values, by up to 2",
        ),
        (
            np.array([np.nan, 1], np.float32),
            np.array([np.nan, np.nan], np.float32),
            "1 of 2 values, by up to nan",
        ),
        (np.array([-128], np.int8), np.array([127], np.int8), "1 of 1 values, by up to 255"),
        (np.array([1j], np.complex64), np.array([0], np.complex64), "1 of 1 values, by up to 1"),
        (np.array([True, True]), np.array([True, False]), "1 of 2 values, by up to 1"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 values"),
    ],
)
def test_differences_are_described(one: object, other: object, what: str, tmp_path: Path) -> None:
    same = np.array([np.nan, np.inf], np.float32)
    differences = _compared(tmp_path, {"t": one, "same": same}, {"t": other, "same": same})
    assert differences.tensors == {"t": what}


def test_tensors_of_one_checkpoint_only(tmp_path: Path) -> None:
    differences = _compared(tmp_path, {"a": 1.0, "b": 2.0}, {"b": 2.0, "c": 3.0})
    assert differences.tensors == {"a": "only in the first", "c": "only in the second"}
    assert str(differences).startswith(f"2 tensors differ\nfirst: {tmp_path}/one.npz\n")


def test_tensors_are_compared_by_alias(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/dense/vars/0"] = np.array([[1, 2]], np.float32)
        file["layers/dense/vars"].attrs["name"] = "head"
    other = save_npz(tmp_path / "o.npz", **{"head/kernel": np.array([[1, 3]], np.float32)})
    differences = runner.checkpoints.diff(tmp_path / "w.h5", other)
    assert differences.tensors == {"layers/dense/vars/0": "1 of 2 values, by up to 1"}
    assert list(runner.checkpoints.diff(other, tmp_path / "w.h5").tensors) == ["head/kernel"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(
            (np.array([[1, 2], [-4, 3]], dtype), (-4, 3, 0.5, 0))
            for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.int8)
        ),
        *(
            (np.array([np.nan, 1, 3, np.nan], dtype), (1, 3, 2, 2))
            for dtype in (np.float32, ml_dtypes.bfloat16)
        ),
        (np.full(2**20, 0.1, np.float16), (*[float(np.float16(0.1))] * 3, 0)),  # In float64.
        (np.array([True, False]), (0, 1, 0.5, 0)),
        (np.array([np.nan], np.float32), (None, None, None, 1)),
        (np.zeros((0, 3)), (None, None, None, 0)),
        (np.array(["a"]), (None, None, None, 0)),
        (np.array([b"a"], object), (None, None, None, 0)),
        (np.array([1j, np.nan], np.complex64), (None, None, None, 1)),
    ],
)
def test_minimum_maximum_mean_and_count_of_nan(
    value: NDArray[Any], expected: tuple[float | None, float | None, float | None, int]
) -> None:
    assert statistics(value) == Statistics(*expected)
