from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.errors import ConfigError
from runner.graph.contracts import Data
from runner.inputs import GeneratorData
from runner.inputs.generator import _Source
from tests.support.reading import resumed, taken

STARTS: list[int] = []


def _batch(index: int) -> tuple[Any, Any]:
    return {"x": np.full((2, 3), index, np.float32)}, np.array([index, index])


def endless() -> Iterator[tuple[Any, Any]]:
    index = 0
    while True:
        yield _batch(index)
        index += 1


def endless_from(start: int = 0) -> Iterator[tuple[Any, Any]]:
    STARTS.append(start)
    while True:
        yield _batch(start)
        start += 1


def two() -> Iterator[tuple[Any, Any]]:
    yield _batch(7)
    yield {"x": np.zeros((1, 3), np.float32)}, np.array([8])


def _labels(batches: list[Any]) -> list[int]:
    return [int(labels[0]) for _, labels in batches]


def test_batches_of_any_structure_come_in_order() -> None:
    data = GeneratorData(endless, two, two)
    assert isinstance(data, Data)
    batches = taken(data.train, 5)
    assert _labels(batches) == [0, 1, 2, 3, 4]
    assert batches[1][0]["x"].tolist() == [[1.0] * 3] * 2
    assert data.train().element_spec[0]["x"].shape.as_list() == [None, 3]
    assert _labels(taken(data.validation)) == _labels(taken(data.test)) == [7, 8]


def test_a_resumed_run_continues_where_it_stopped(tmp_path: Path) -> None:
    data = GeneratorData(endless_from, two, two)
    first, again = resumed(data.train, str(tmp_path / "input"))
    assert _labels(first) == _labels(again) == [2, 3, 4, 5]
    assert STARTS[-1] >= 2, "not by discarding batches"


@pytest.mark.parametrize("batches", [endless, endless_from])
def test_any_batch_is_found_by_its_number_and_in_order_nothing_begins_again(batches: Any) -> None:
    STARTS.clear()
    source = _Source(batches, replay=True)
    values = [source.batch(np.asarray(at))[2][0] for at in (0, 1, 2, 7, 8, 3)]
    assert values == [0, 1, 2, 7, 8, 3]
    if batches is endless_from:
        assert STARTS == [0, 7, 3]


def test_a_session_that_begins_again_begins_with_the_first_batch() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(GeneratorData(endless, two, two).train())
        batch = iterator.get_next()
        for _ in range(2):
            session.run(iterator.initializer)
            assert [session.run(batch)[1][0] for _ in range(3)] == [0, 1, 2]


def test_a_stream_that_cannot_begin_again_goes_on_and_says_so(tmp_path: Path) -> None:
    data = GeneratorData(endless, two, two, replay=False)
    with pytest.raises(tf.errors.FailedPreconditionError, match="PyFunc is stateful"):
        resumed(data.train, str(tmp_path / "input"))
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(data.train())
        batch = iterator.get_next()
        session.run(iterator.initializer)
        assert session.run(batch)[1][0] == 0
        session.run(iterator.initializer)
        assert session.run(batch)[1][0] >= 1


def test_a_generator_that_ends_ends_the_dataset() -> None:
    assert _labels(taken(GeneratorData(two, two, two).train)) == [7, 8]


def test_a_generator_without_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="a generator gives no batch"):
        GeneratorData(lambda: iter(()), two, two).train()


def test_what_is_no_function() -> None:
    with pytest.raises(ValueError, match=r"validation_batches is .*generator.*`_partial_: true`"):
        GeneratorData(two, two(), two)  # type: ignore[arg-type]
