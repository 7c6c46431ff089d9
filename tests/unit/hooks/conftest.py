"""A fresh graph for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow.compat.v1 as tf

from tests.tiny.counter import Counter


@pytest.fixture
def counter() -> Iterator[Counter]:
    """A counting graph, the default one during the test."""
    with tf.Graph().as_default():
        yield Counter()
