from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.experiment import Data
from runner.inputs import ImageFolder
from tests.tiny.reading import resumed, taken


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Red cats and blue dogs in three formats, ten of each, and what is no image."""
    encoders = {".png": tf.io.encode_png, ".jpg": tf.io.encode_jpeg, ".JPEG": tf.io.encode_jpeg}
    for name, channel in (("dog", 2), ("cat", 0)):
        (tmp_path / "images" / name).mkdir(parents=True)
        pixels = np.zeros((6, 4, 3), np.uint8)
        pixels[..., channel] = 255
        for index in range(10):
            suffix = list(encoders)[index % 3]
            encoded = encoders[suffix](pixels).numpy()
            (tmp_path / "images" / name / f"{index}{suffix}").write_bytes(encoded)
    (tmp_path / "images" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "images" / "README").write_text("no class")
    return tmp_path / "images"


def _data(folder: Path, **changes: Any) -> ImageFolder:
    arguments = {"batch_size": 4, "seed": 0, "height": 3, "width": 5, **changes}
    return ImageFolder(str(folder), **arguments)


def test_a_class_is_a_folder_and_each_split_has_a_part_of_it(folder: Path) -> None:
    data = _data(folder)
    assert isinstance(data, Data)
    assert data.classes() == ["cat", "dog"]
    assert data.sizes() == {"train": 16, "validation": 2, "test": 2}
    passes = [taken(data.train, 4), taken(data.validation), taken(data.test)]
    labels = [np.concatenate([each[1] for each in batches]) for batches in passes]
    assert [np.bincount(each).tolist() for each in labels] == [[8, 8], [1, 1], [1, 1]]
    for features, batch_labels in passes[0]:
        assert (features.dtype, features.shape) == (np.float32, (4, 3, 5, 3))
        brightest = features.mean(axis=(1, 2)).argmax(axis=-1)
        assert np.array_equal(brightest, batch_labels * 2)
        assert 0.9 < features.max() <= 1.0


def test_no_image_is_in_two_splits_and_the_split_is_always_the_same(folder: Path) -> None:
    files = {
        part: _data(folder, seed=5)._files(part)[0] for part in ("train", "validation", "test")
    }
    assert files == {part: _data(folder)._files(part)[0] for part in files}
    every = [file for each in files.values() for file in each]
    assert len(every) == len(set(every)) == 20


def test_grey_images_have_one_channel(folder: Path) -> None:
    assert taken(_data(folder, channels=1).validation)[0][0].shape == (2, 3, 5, 1)


def test_its_position_is_kept(folder: Path, tmp_path: Path) -> None:
    first, again = resumed(_data(folder, batch_size=3).train, str(tmp_path / "input"))
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one[0], other[0])


def test_a_class_with_too_few_images(folder: Path) -> None:
    (folder / "bird").mkdir()
    with pytest.raises(ConfigError, match=r"bird holds 0 images"):
        _data(folder).train()


def test_a_folder_without_classes(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="it holds no folder for a class"):
            _data(folder).validation()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"channels": 2}, "channels is 2; choices: 1, 3, 4"),
        ({"test_part": 0.95}, "together below 1"),
    ],
)
def test_arguments_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _data(Path(), **changes)
