from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from runner.training.export import exported_model, named
from tests.tiny.experiment import Blobs


def test_a_signature_is_read_with_an_example_of_the_test_split(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = tf.compat.v1.placeholder(tf.float32, [None, 4])
        tf.compat.v1.saved_model.simple_save(
            session, str(folder), {"features": features}, {"outputs": tf.argmax(features, 1)}
        )
    found = exported_model(folder, 7, Blobs())
    assert (found.folder, found.step) == (folder, 7)
    assert [(each.name, each.dtype, each.shape) for each in found.inputs] == [
        ("features", np.dtype("float32"), (-1, 4))
    ]
    assert [(each.name, each.dtype, each.shape) for each in found.outputs] == [
        ("outputs", np.dtype("int64"), (-1,))
    ]
    (first, _), *_ = Blobs().test().as_numpy_iterator()
    assert (found.example["features"] == first[:1]).all()


def test_leaves_have_numbers_where_there_are_several() -> None:
    assert named("x", 1) == {"x": 1}
    assert named("x", {"b": 2, "a": (0, 1)}) == {"x_0": 0, "x_1": 1, "x_2": 2}
