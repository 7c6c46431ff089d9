from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.contracts import Data
from runner.inputs import TFRecord
from tests.support.reading import check_shuffled, taken


def _example(index: int) -> bytes:
    features = {
        "vector": tf.train.Feature(float_list=tf.train.FloatList(value=[index, -index])),
        "pixels": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[np.full((2, 3), index, np.uint8).tobytes()])
        ),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(example.SerializeToString())


def _write(folder: Path, compression: str = "") -> None:
    names = {"train-0": range(6), "train-1": range(6, 12), "validation": [20], "test": [30, 31]}
    for name, indices in names.items():
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for index in indices:
                writer.write(_example(index))


VECTOR = {"vector": {"shape": [2], "dtype": "float32"}, "label": {"dtype": "int64"}}
PIXELS = {"pixels": {"shape": [2, 3], "dtype": "uint8"}}


def _data(folder: Path, **changes: Any) -> TFRecord:
    arguments = {
        "train_files": [f"{folder}/train-*"],
        "validation_files": [f"{folder}/validation"],
        "test_files": f"{folder}/test",
        "features": VECTOR,
        "label": "label",
        "batch_size": 4,
        "seed": 0,
        **changes,
    }
    return TFRecord(**arguments)


def test_one_feature_is_a_tensor_and_splits_have_their_files(tmp_path: Path) -> None:
    _write(tmp_path)
    data = _data(tmp_path)
    assert isinstance(data, Data)
    batches = taken(data.train, 3)
    assert sorted(np.concatenate([labels for _, labels in batches])) == list(range(12))
    for features, labels in batches:
        assert np.array_equal(features, np.stack([labels, -labels], axis=1).astype(np.float32))
    assert [batch[1].tolist() for batch in taken(data.validation)] == [[20]]
    assert [batch[1].tolist() for batch in taken(data.test)] == [[30, 31]]


def test_several_features_are_a_dict_and_raw_bytes_are_decoded(tmp_path: Path) -> None:
    _write(tmp_path, "GZIP")
    data = _data(tmp_path, features={**VECTOR, **PIXELS}, compression="GZIP")
    ((features, labels),) = taken(data.test)
    assert features["pixels"].dtype == np.uint8
    assert features["pixels"].tolist() == [[[index] * 3] * 2 for index in labels]
    assert set(features) == {"vector", "pixels"}
    assert data.test().element_spec[0]["pixels"].shape.as_list() == [None, 2, 3]


def test_training_is_shuffled_by_its_seed_and_anew_each_epoch(tmp_path: Path) -> None:
    _write(tmp_path)
    check_shuffled(lambda seed: _data(tmp_path, seed=seed, batch_size=1), 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_files": ["/nowhere/a*"]}, r"data\.train_files: /nowhere/a\* matches no file"),
        ({"train_files": []}, r"data\.train_files names no file"),
        ({"label": "lable"}, r"data\.label is 'lable'(.|\n)*choices: label, vector"),
        ({"features": {"label": {"dtype": "int64"}}}, "at least one other must be among them"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    _write(tmp_path)
    with pytest.raises(ConfigError, match=message):
        _data(tmp_path, **changes).train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compression": "BZ2"}, "compression is 'BZ2'; choices: '', 'GZIP', 'ZLIB'"),
        ({"batch_size": 0}, "both must be at least 1"),
        ({"shuffle_buffer": 0}, "both must be at least 1"),
    ],
)
def test_arguments_that_there_are_not(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _data(Path(), **changes)
