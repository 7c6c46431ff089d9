from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.array_files import NpzReader
from runner.checkpoints.averaging import AverageReader
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def _readers(folder: Path, *contents: dict[str, object]) -> list[NpzReader]:
    readers = []
    for number, content in enumerate(contents):
        path = folder / f"{number}.npz"
        np.savez(path, allow_pickle=False, **{k: np.asarray(v) for k, v in content.items()})
        readers.append(NpzReader(str(path)))
    return readers


def _average(folder: Path, *values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    reader = AverageReader(_readers(folder, *({"t": value} for value in values)))
    ((_, value),) = reader.read(["t"])
    return value


def test_float32_is_averaged_in_float64(tmp_path: Path) -> None:
    values = [np.float32(each) for each in (1e8, 1, -1e8, 2)]
    assert np.float32(sum(values, np.float32(0)) / np.float32(4)) != np.float32(0.75)
    average = _average(tmp_path, *values)
    assert average.dtype == np.float32
    assert average.item() == 0.75


def test_float16_does_not_overflow(tmp_path: Path) -> None:
    average = _average(tmp_path, np.array([57344], np.float16), np.array([40960], np.float16))
    assert (average.dtype.name, average.item()) == ("float16", 49152)


def test_complex_numbers_have_a_mean(tmp_path: Path) -> None:
    average = _average(tmp_path, np.complex64(2 + 4j), np.complex64(4))
    assert (average.dtype.name, average.item()) == ("complex64", 3 + 2j)


@pytest.mark.parametrize(
    ("first", "last"), [(np.int64(10), np.int64(30)), (True, False), ("a", "b")]
)
def test_what_has_no_mean_is_the_last(first: object, last: object, tmp_path: Path) -> None:
    assert _average(tmp_path, first, last).item() == np.asarray(last).item()


def test_what_has_no_mean_may_differ_in_everything(tmp_path: Path) -> None:
    first = {"w": 1.0, "step": np.int32(3), "state": ["a", "b"], "gone": 7}
    last = {"w": 4.0, "step": np.int64(5), "state": ["c"], "new": True}
    reader = AverageReader(_readers(tmp_path, first, last))
    assert sorted(reader.spec().tensors) == ["new", "state", "step", "w"]
    found = {name: value.tolist() for name, value in reader.read(["state", "w", "new", "step"])}
    assert found == {"state": ["c"], "w": 2.5, "new": True, "step": 5}
    with pytest.raises(CheckpointError, match="holds no tensor 'gone'"):
        list(reader.read(["w", "gone"]))


def test_bfloat16_is_averaged() -> None:
    from runner.checkpoints.averaging import _mean

    values = (np.array([each], ml_dtypes.bfloat16) for each in (1.0, 2.0))
    average = _mean(values)
    assert (average.dtype.name, float(average[0])) == ("bfloat16", 1.5)


def test_the_spec_is_of_the_last_and_names_all(tmp_path: Path) -> None:
    readers = _readers(tmp_path, {"t": 1.0, "global_step": 5}, {"t": 2.0, "global_step": 9})
    spec = AverageReader(readers).spec()
    assert (spec.step, spec.format) == (9, "average of 2 x NumPy archive")
    assert all(reader.path in spec.path for reader in readers)
    assert spec.digest != AverageReader(readers[::-1]).spec().digest


def test_checkpoints_of_different_models_are_refused(tmp_path: Path) -> None:
    one = {"a": np.array([1], np.float32), "b": np.array([1, 2], np.float32), "c": 1.0}
    other = {"a": np.array([1], np.float64), "b": np.array([1], np.float32)}
    with pytest.raises(CheckpointError, match="cannot be averaged: a is float32") as caught:
        AverageReader(_readers(tmp_path, one, other)).spec()
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "b is float32 [2] in the first and float32 [1] in the second" in text
    assert "c is float64 [] in the first and missing in the second" in text


def test_averaging_streams(tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", a=np.full(4, float(number)), b=np.ones(2))
    readers = [open_checkpoint(str(tmp_path / f"{number}.npz")) for number in range(3)]
    stream = AverageReader(readers).read(["b", "a"])
    name, value = next(stream)
    assert (name, value.tolist()) == ("b", [1, 1])
    assert next(stream)[1].tolist() == [1, 1, 1, 1]
