from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.digits import Digits, DigitSequences, Images, load_splits
from runner.graph.contracts import Data
from tests.support.reading import taken

Batch = tuple[NDArray[np.float32], NDArray[np.int32]]


def read(data: Any, split: str, batches: int = 100) -> list[Batch]:
    return taken(getattr(data, split), batches)


def keys(images: NDArray[np.float32]) -> list[bytes]:
    return [image.tobytes() for image in images.reshape(-1, 64)]


def digit_of(images: Images) -> dict[bytes, int]:
    return dict(zip(keys(images.images), images.digits.tolist(), strict=True))


def test_splits_share_no_image_lose_none_and_hold_every_digit_equally_often() -> None:
    splits = load_splits()
    parts = (splits.train, splits.validation, splits.test)
    train, validation, test = (set(keys(images.images)) for images in parts)
    assert (len(train), len(validation), len(test)) == (1078, 359, 360)
    assert len(train | validation | test) == 1797
    shares = [np.bincount(images.digits, minlength=10) / len(images.digits) for images in parts]
    assert np.ptp(np.stack(shares), axis=0).max() < 0.005
    assert splits.train.images.dtype == np.float32
    assert (splits.train.images.min(), splits.train.images.max()) == (0, 1)


def test_sizes_are_those_of_the_splits() -> None:
    assert Digits(8, 0).sizes() == {"train": 1078, "validation": 359, "test": 360}
    data = DigitSequences(10, 0, length=6, evaluation_sequences=20)
    assert isinstance(data, Data)
    assert data.sizes() == {"train": 179, "validation": 20, "test": 20}
    for split in ("validation", "test"):
        assert sum(len(labels) for _, labels in read(data, split)) == data.sizes()[split]


def test_an_epoch_holds_every_training_image_once_and_the_next_has_another_order() -> None:
    batches = read(Digits(batch_size=539, seed=0), "train", 4)
    images, labels = batches[0]
    assert (images.shape, labels.dtype.name) == ((539, 8, 8, 1), "int32")
    digits = digit_of(load_splits().train)
    assert labels.tolist() == [digits[key] for key in keys(images)]
    first, second = (
        keys(np.concatenate([batches[first][0], batches[first + 1][0]])) for first in (0, 2)
    )
    assert set(first) == set(second) == set(keys(load_splits().train.images))
    assert len(first) == len(second) == 1078
    assert first != second


def test_evaluation_of_single_digits_is_one_ordered_pass() -> None:
    batches = read(Digits(batch_size=100, seed=0), "test")
    expected = load_splits().test
    assert [len(labels) for _, labels in batches] == [100, 100, 100, len(expected.digits) - 300]
    np.testing.assert_array_equal(
        np.concatenate([images for images, _ in batches]), expected.images
    )
    np.testing.assert_array_equal(
        np.concatenate([digits for _, digits in batches]), expected.digits
    )


@pytest.mark.parametrize("make", [Digits, partial(DigitSequences, length=3)])
def test_the_seed_decides_the_training_batches(make: Callable[[int, int], object]) -> None:
    def labels(seed: int) -> list[int]:
        batches = read(make(50, seed), "train", 2)
        return [int(label) for _, batch in batches for label in batch.ravel()]

    assert labels(3) == labels(3)
    assert labels(3) != labels(4)


@pytest.mark.parametrize(
    ("split", "every_step"), [("train", True), ("validation", False), ("test", True)]
)
def test_sequences_are_made_of_their_own_splits_images_and_labelled_with_sums(
    split: str, every_step: bool
) -> None:
    digits = digit_of(getattr(load_splits(), split))
    data = DigitSequences(batch_size=8, seed=0, length=5, modulus=7, every_step=every_step)
    images, labels = read(data, split, 1)[0]
    assert images.shape == (8, 5, 8, 8, 1)
    shown = np.array([digits[key] for key in keys(images)]).reshape(8, 5)
    sums = np.cumsum(shown, axis=1) % 7
    np.testing.assert_array_equal(labels, sums if every_step else sums[:, -1])


def test_evaluation_sequences_are_the_same_for_every_seed() -> None:
    one, other = (
        read(DigitSequences(30, seed, length=3, evaluation_sequences=70), "validation")
        for seed in (0, 1)
    )
    assert [len(labels) for _, labels in one] == [30, 30, 10]
    for (images, labels), (other_images, other_labels) in zip(one, other, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_the_last_image_alone_tells_almost_nothing_about_the_sum() -> None:
    digits = digit_of(load_splits().validation)
    data = DigitSequences(1000, 0, length=6, every_step=False)
    [(images, labels)] = read(data, "validation")
    pairs = Counter(
        (digits[key], label)
        for key, label in zip(keys(images[:, -1]), labels.tolist(), strict=True)
    )
    best_guess = sum(max(pairs[digit, label] for label in range(10)) for digit in range(10))
    assert best_guess / 1000 < 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Digits(batch_size=0, seed=0), "batch_size is 0; it must be at least 1"),
        (
            lambda: DigitSequences(1, 0, length=0, evaluation_sequences=-1),
            "length is 0, evaluation_sequences is -1; it must be",
        ),
        (lambda: DigitSequences(1, 0, length=1, modulus=1), "modulus is 1; it must be at least 2"),
    ],
)
def test_all_numbers_that_are_too_small_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
