"""Takes batches from a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from runner.graph.input_pipeline import TrainingInput
from runner.internals.datasets import dataset_in_graph


def taken(make: Callable[[], tf.data.Dataset], count: int = 100) -> list[Any]:
    """Returns at most `count` batches of a new dataset."""
    return list(make().take(count).as_numpy_iterator())


def check_shuffled(make: Callable[[int], Any], count: int) -> None:
    """Checks that an epoch of `count` batches has the order of its seed, and the next another."""

    def order(seed: int) -> list[bytes]:
        return [x.tobytes() + y.tobytes() for x, y in taken(make(seed).train, 2 * count)]

    first = order(0)
    assert first == order(0) != order(1)
    assert first[:count] != first[count:]
    assert sorted(first[:count]) == sorted(first[count:])


def resumed(make: Callable[[], tf.data.Dataset], prefix: str) -> tuple[list[Any], list[Any]]:
    """Returns batches 2 to 5 of one process, and what another gives that resumes at batch 2."""

    dataset = make()

    def graph() -> tuple[TrainingInput, Any, tf.train.Saver]:
        source = TrainingInput(dataset_in_graph(dataset), prefetch=True)
        return source, source.next()[0], tf.train.Saver({"input": source.saveable})

    with tf.Graph().as_default(), tf.Session() as session:
        source, batch, saver = graph()
        session.run(source.initializer)
        session.run(batch), session.run(batch)
        session.run(source.state.serialize_strictly)
        saver.save(session, prefix, write_meta_graph=False)
        first = [session.run(batch) for _ in range(4)]
    with tf.Graph().as_default(), tf.Session() as session:
        source, batch, saver = graph()
        saver.restore(session, prefix)
        return first, [session.run(batch) for _ in range(4)]
