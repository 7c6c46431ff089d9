from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.graph.contracts import Data
from runner.inputs import Npz
from runner.inputs.npz import split
from tests.support.reading import check_shuffled, resumed, taken


@pytest.fixture
def npz_file(tmp_path: Path) -> str:
    features = np.arange(60, dtype=np.float32).reshape(30, 2)
    np.savez(
        tmp_path / "data.npz",
        features=features,
        labels=np.arange(30),
        short=np.arange(5),
        single=np.array(3),
    )
    return str(tmp_path / "data.npz")


def _npz(path: str, /, **changes: Any) -> Npz:
    return Npz(**{"path": path, "batch_size": 4, "seed": 0, **changes})


@pytest.mark.parametrize(
    ("count", "parts", "sizes"), [(50, (0.1, 0.2), [35, 5, 10]), (3, (0.01, 0.01), [1, 1, 1])]
)
def test_splits_share_nothing_leave_nothing_out_and_stay_the_same(
    count: int, parts: tuple[float, float], sizes: list[int]
) -> None:
    indices_of = split(count, *parts)
    assert list(indices_of) == ["train", "validation", "test"]
    assert [len(indices) for indices in indices_of.values()] == sizes
    assert sorted(np.concatenate(list(indices_of.values()))) == list(range(count))
    assert (
        indices_of["train"].tolist() == split(count, *parts)["train"].tolist() != list(range(count))
    )


def test_training_is_shuffled_by_its_seed_and_anew_each_epoch(npz_file: str) -> None:
    check_shuffled(lambda seed: _npz(npz_file, seed=seed, batch_size=1), 24)


def test_the_position_is_kept(npz_file: str, tmp_path: Path) -> None:
    first, again = resumed(_npz(npz_file, batch_size=3).train, str(tmp_path / "input"))
    assert np.array_equal([batch[1] for batch in first], [batch[1] for batch in again])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"validation_part": 0.0}, "both must be above 0, and together below 1"),
        ({"test_part": -0.1}, "both must be above 0, and together below 1"),
        ({"test_part": 0.95}, "both must be above 0, and together below 1"),
        ({"test_part": float("nan")}, "both must be above 0, and together below 1"),
    ],
)
def test_arguments_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _npz("data.npz", **changes)


def test_every_example_is_in_one_split_with_its_label(npz_file: str) -> None:
    data = _npz(npz_file)
    assert isinstance(data, Data)
    passes = [taken(data.train, 6), taken(data.validation), taken(data.test)]
    labels = [np.concatenate([batch[1] for batch in batches]) for batches in passes]
    assert sorted(np.concatenate(labels)) == list(range(30))
    assert [len(values) for values in labels] == [24, 3, 3] == list(data.sizes().values())
    for features, batch_labels in passes[0]:
        assert (features.dtype, features.shape) == (np.float32, (4, 2))
        assert np.array_equal(features[:, 0], batch_labels * 2)
    known = data.train().element_spec
    assert [tensor.shape.as_list() for tensor in known] == [[None, 2], [None]]


def test_a_file_that_is_no_archive_or_not_whole(npz_file: str, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    whole = Path(npz_file).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("one.npy", "cut.npz"):
        with pytest.raises(ConfigError, match=r"cannot be read: an \.npz file is a zip archive"):
            _npz(str(tmp_path / name)).train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "label"}, "has no array 'label'\n  choices: labels"),
        ({"labels": "short"}, "holds 30 features and 5 short"),
        ({"labels": "single"}, "holds 30 features and 1 single"),
        ({"path": "/nowhere.npz"}, r"data\.path is /nowhere\.npz"),
    ],
)
def test_a_file_that_does_not_fit(npz_file: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _npz(npz_file, **changes).train()
