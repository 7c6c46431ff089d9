from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.restoration import graph_restoration
from runner.restoration.graph_restoration import (
    BundleTensor,
    chunks,
    reads,
    restore_operation,
    slice_spec,
)

tf1 = tf.compat.v1


def of_size(*sizes: int) -> list[BundleTensor]:
    return [
        BundleTensor(
            "cnn", "p", f"t{at}", f"t{at}", (size,), None, tf1.get_variable(f"v{at}", [size])
        )
        for at, size in enumerate(sizes)
    ]


def test_a_slice_is_spelled_as_tensorflow_does() -> None:
    info = tf1.Variable.SaveSliceInfo("table", [5, 3], [3, 0], [2, 3])
    assert slice_spec((5, 3), (3, 0), (2, 3)) == info.spec


def test_chunks_are_bounded_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_restoration, "CHUNK_BYTES", 20)
    with tf.Graph().as_default():
        tensors = of_size(1, 4, 1, 9, 2, 3)
        made = [[each.takers[0] for each in chunk] for chunk in chunks(reads(tensors))]
    assert made == [tensors[:2], tensors[2:3], tensors[3:4], tensors[4:]]
    assert list(chunks([])) == []


def test_tensors_are_looked_at_as_they_are_read(tmp_path: Path) -> None:
    seen: dict[tuple[str, str], Any] = {}

    def look(source: str, name: str, value: Any) -> None:
        seen[source, name] = value.copy()

    with tf.Graph().as_default():
        floats = tf1.get_variable("f", initializer=np.array([1, 2], np.float32))
        whole = tf1.get_variable("i", initializer=np.int64(3))
        text = tf1.get_variable("s", initializer="text", dtype=tf.string)
        saver = tf1.train.Saver()
        tensors = [
            BundleTensor("cnn", str(tmp_path / "m"), f"the {v.op.name}", v.op.name, (), None, v)
            for v in (floats, whole, text)
        ]
        restore = restore_operation(tensors, look)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(tmp_path / "m"))
        with tf1.Session() as session:
            session.run(restore)
            assert session.run([whole, text]) == [3, b"text"]
    assert list(seen) == [("cnn", "the f")]
    np.testing.assert_array_equal(seen["cnn", "the f"], [1, 2])


def test_a_variable_of_another_shape_is_not_overwritten(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        saved = tf1.get_variable("x", initializer=np.array([1, 2], np.float32))
        other = tf1.get_variable("y", initializer=np.array([1, 2, 3], np.float32))
        saver = tf1.train.Saver([saved])
        tensor = BundleTensor("cnn", str(tmp_path / "m"), "x", "x", (2,), None, other)
        restore = restore_operation([tensor], lambda *_: None)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(tmp_path / "m"))
            with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
                session.run(restore)


def test_a_tensor_of_which_several_variables_take_blocks_is_read_once(tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    with tf.Graph().as_default() as graph:
        saver = tf1.train.Saver([tf1.get_variable("x", initializer=whole)])
        takers = [
            BundleTensor("cnn", str(tmp_path / "m"), "x", "x", (4, 3), offset, variable)
            for offset, variable in (
                ((0, 0), tf1.get_variable("top", [1, 3])),
                ((1, 1), tf1.get_variable("corner", [3, 2])),
                (None, tf1.get_variable("all", [4, 3])),
            )
        ]
        restore = restore_operation(takers, lambda *_: None)
        (read,) = (
            op
            for op in graph.get_operations()
            if op.type == "RestoreV2" and op.outputs and op.name.startswith("restore_bundles")
        )
        assert len(read.outputs) == 1
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(tmp_path / "m"))
            session.run(restore)
            top, corner, everything = session.run([each.variable for each in takers])
    np.testing.assert_array_equal(top, whole[:1])
    np.testing.assert_array_equal(corner, whole[1:, 1:])
    np.testing.assert_array_equal(everything, whole)


def test_what_is_on_a_parameter_server_is_read_by_the_chief(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:1"):
            variable = tf.compat.v1.get_variable("x", [2], use_resource=True)
        tensor = BundleTensor("cnn", str(tmp_path / "m"), "x", "x", (2,), None, variable)
        restore_operation([tensor], lambda *looked: None)
        places = {
            each.device for each in graph.get_operations() if each.type in ("RestoreV2", "PyFunc")
        }
    assert places == {"/job:chief/task:0/device:CPU:0"}
