"""Data as `keras.Model.fit` takes them: the same batches, epochs and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow.compat.v1 as tf

from runner.config.schema import TrainConfig
from runner.errors import ConfigError
from runner.graph.build import build_graph
from runner.graph.experiment import Data
from runner.inputs import FitData
from tests.tiny.configs import tiny
from tests.tiny.reading import resumed, taken

FEATURES = np.random.default_rng(1).normal(size=(10, 4))
LABELS = (FEATURES.sum(axis=1) > 0).astype("int32")
FRAME = pd.DataFrame({"age": [1.5, 2.5, 3.5], "name": ["a", "b", "c"]})
WEIGHTS = {0: 1.0, 1: 3.0}


class Numbered(keras.utils.PyDataset):
    """Three batches, which tell the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.array([[self.epoch, index]], "float32"), np.array([0])

    def on_epoch_end(self) -> None:
        self.epoch += 1


def one_and_two() -> Iterator[Any]:
    yield np.array([[1.0]]), np.array([1])
    yield np.array([[2.0]]), np.array([2])


def arrays() -> Any:
    return FEATURES, LABELS


def model() -> keras.Model:
    layers = [keras.Input((4,)), keras.layers.Dense(2, "softmax", name="head")]
    built = keras.Sequential(layers)
    built.compile("sgd", "sparse_categorical_crossentropy")
    return built


def assert_resumed(make: Callable[[], Any], folder: Path) -> None:
    expected, batches = resumed(make, str(folder / "position"))
    for (rows, _), (other, _) in zip(batches, expected, strict=True):
        assert np.array_equal(rows, other)


def test_arrays_are_split_and_batched_as_by_fit(tmp_path: Path) -> None:
    data = FitData(arrays(), validation_split=0.25, batch_size=3)
    assert isinstance(data, Data)
    assert data.sizes() == {"train": 7, "validation": 3, "test": 3}
    assert data.epoch_length == 3
    batches = taken(data.train, 6)
    assert [len(labels) for _, labels in batches] == [3, 3, 1] * 2
    orders = [np.concatenate([rows for rows, _ in part]) for part in (batches[:3], batches[3:])]
    assert not np.array_equal(orders[0], orders[1])
    expected = np.sort(FEATURES[:7].astype("float32"), axis=0)
    for order in orders:
        assert np.array_equal(np.sort(order, axis=0), expected)
    ((rows, labels),) = taken(data.validation, 1)
    assert np.array_equal(rows, FEATURES[7:].astype("float32"))
    assert labels.tolist() == LABELS[7:].tolist()
    assert_resumed(data.train, tmp_path)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        ({"x": [[1.0], [2.0]], "s": ["a", "bc"]}, {"x": [[1.0], [2.0]], "s": [b"a", b"bc"]}),
        (FRAME[["age"]], [[1.5], [2.5]]),
        (dict(FRAME), {"age": [1.5, 2.5], "name": [b"a", b"b"]}),
        ((FEATURES[:2, 0], None), FEATURES[:2, 0].astype("float32").tolist()),
    ],
)
def test_arrays_may_be_frames_strings_and_have_no_labels(data: Any, first: Any) -> None:
    (batch,) = taken(FitData(data, data, batch_size=2, shuffle=False).train, 1)
    batch = batch[0] if isinstance(batch, tuple) else batch
    assert tf.nest.map_structure(lambda array: array.tolist(), batch) == first


def test_a_py_dataset_has_its_epochs_also_after_a_resumption(tmp_path: Path) -> None:
    def batches() -> Any:
        return FitData(Numbered(), Numbered(), shuffle=False).train()

    told = [rows[0].tolist() for rows, _ in taken(batches, 7)]
    assert told == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert_resumed(batches, tmp_path)
    shuffled = taken(FitData(Numbered(), Numbered()).train, 3)
    assert sorted(rows[0, 1] for rows, _ in shuffled) == [0, 1, 2]


def test_a_generator_is_a_function() -> None:
    data = FitData(one_and_two, one_and_two)
    assert data.epoch_length is None
    assert [labels.tolist() for _, labels in taken(data.validation, 2)] == [[1], [2]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FitData(one_and_two(), arrays()).train(), "a generator is no array"),
        (lambda: FitData(FRAME, arrays()).train(), "a DataFrame is no array"),
        (lambda: FitData((FEATURES, LABELS[:3]), arrays()).train(), r"have \[3, 10\] examples"),
        (lambda: FitData(Numbered(), validation_split=0.1).train(), "only arrays can be split"),
    ],
)
def test_what_fit_would_refuse_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_without_validation_there_is_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"such as validation_split: 0.2"):
        FitData(arrays())


def test_epochs_class_weights_and_the_split_are_those_of_fit() -> None:
    keras.utils.set_random_seed(0)
    expected: list[float] = []

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            expected.append(logs["loss"])
            self.model.reset_metrics()

    model().fit(
        *arrays(),
        batch_size=3,
        epochs=3,
        validation_split=0.25,
        shuffle=False,
        class_weight=WEIGHTS,
        callbacks=[Log()],
        verbose=0,
    )
    node = {"_target_": "runner.inputs.FitData", "batch_size": 3, "shuffle": False}
    data = {**node, "train_data": {"_target_": f"{__name__}.arrays"}, "validation_split": 0.25}
    built = build_graph(
        tiny(
            data=data,
            model={"_target_": f"{__name__}.model"},
            loss=None,
            metrics={},
            optimizer={},
            class_weight=WEIGHTS,
            train=TrainConfig(epochs=3),
        ),
        "validation",
        train=True,
    )
    training = built.training
    assert training is not None
    assert training.epoch_length == 3
    with built.graph.as_default(), tf.Session() as session:
        session.run([tf.global_variables_initializer(), training.input_initializer])
        losses = [session.run([training.values["loss"], training.train_op])[0] for _ in expected]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
