from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.graph.experiment import Data
from runner.inputs import Npz
from tests.tiny.reading import resumed, taken


@pytest.fixture
def path(tmp_path: Path) -> str:
    features = np.arange(60, dtype=np.float32).reshape(30, 2)
    np.savez(
        tmp_path / "data.npz",
        features=features,
        labels=np.arange(30),
        short=np.arange(5),
        single=np.array(3),
    )
    return str(tmp_path / "data.npz")


def _data(path: str, /, **changes: Any) -> Npz:
    return Npz(**{"path": path, "batch_size": 4, "seed": 0, **changes})


def test_every_example_is_in_one_split_with_its_label(path: str) -> None:
    data = _data(path)
    assert isinstance(data, Data)
    passes = [taken(data.train, 6), taken(data.validation), taken(data.test)]
    labels = [np.concatenate([each[1] for each in batches]) for batches in passes]
    assert sorted(np.concatenate(labels)) == list(range(30))
    assert [len(each) for each in labels] == [24, 3, 3] == list(data.sizes().values())
    for features, batch_labels in passes[0]:
        assert (features.dtype, features.shape) == (np.float32, (4, 2))
        assert np.array_equal(features[:, 0], batch_labels * 2)


def test_training_is_shuffled_by_its_seed_and_anew_each_epoch(path: str) -> None:
    def order(seed: int) -> list[int]:
        return [int(x) for _, labels in taken(_data(path, seed=seed).train, 12) for x in labels]

    first = order(0)
    assert first == order(0) != order(1)
    assert first[:24] != first[24:]
    assert sorted(first[:24]) == sorted(first[24:])


def test_shapes_are_known_to_the_graph(path: str) -> None:
    features, labels = _data(path).train().element_spec
    assert (features.shape.as_list(), labels.shape.as_list()) == ([None, 2], [None])


def test_its_position_is_kept(path: str, tmp_path: Path) -> None:
    first, again = resumed(_data(path).train, str(tmp_path / "input"))
    assert np.array_equal([each[1] for each in first], [each[1] for each in again])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "label"}, "has no array 'label'\n  choices: labels"),
        ({"labels": "short"}, "holds 30 features and 5 short"),
        ({"labels": "single"}, "'single' in .* is a single value\n"),
        ({"path": "/nowhere.npz"}, r"data\.path is /nowhere\.npz"),
    ],
)
def test_a_file_that_does_not_fit(path: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _data(path, **changes).train()


def test_a_batch_of_nothing(path: str) -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        _data(path, batch_size=0)
