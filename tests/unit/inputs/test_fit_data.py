"""Batches of images in folders, as docs/how-to/data.md has Keras read them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from runner.inputs import FitData
from tests.support.reading import resumed, taken


def test_images_in_folders_are_read_by_keras_and_resume(tmp_path: Path) -> None:
    for name, channel in (("cat", 0), ("dog", 2)):
        (tmp_path / "images" / name).mkdir(parents=True)
        pixels = np.zeros((6, 4, 3), np.uint8)
        pixels[..., channel] = 255
        for index in range(10):
            encoded = tf.io.encode_png(pixels).numpy()
            (tmp_path / "images" / name / f"{index}.png").write_bytes(encoded)
    load = partial(
        keras.utils.image_dataset_from_directory,
        str(tmp_path / "images"),
        image_size=(3, 5),
        batch_size=4,
        validation_split=0.2,
        seed=1,
        verbose=False,
    )
    data = FitData(
        partial(load, subset="training"), validation_data=partial(load, subset="validation")
    )
    assert data.steps() == 4
    assert [len(taken(each)) for each in (data.train, data.validation)] == [4, 1]
    for images, labels in taken(data.train):
        assert images.shape == (4, 3, 5, 3)
        assert np.array_equal(images.mean(axis=(1, 2)).argmax(axis=-1), labels * 2)
    first, again = resumed(lambda: data.train().repeat(), str(tmp_path / "input"))
    assert [batch[1].tolist() for batch in first] == [batch[1].tolist() for batch in again]
