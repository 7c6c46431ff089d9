from __future__ import annotations

from enum import Enum

import pytest

from runner.config.masking import flatten
from runner.errors import TrackingError


class Color(Enum):
    RED = 1


def test_every_value_has_its_dotted_name() -> None:
    config = {
        "name": "cnn",
        "train": {"steps": 10, "goal": None},
        "layers": [{"units": 8}, {"units": (4, 2)}],
        "color": Color.RED,
    }
    assert flatten(config) == {
        "name": "cnn",
        "train.steps": 10,
        "train.goal": None,
        "layers.0.units": 8,
        "layers.1.units.0": 4,
        "layers.1.units.1": 2,
        "color": "RED",
    }


def test_empty_containers_are_values() -> None:
    assert flatten({"rename": {}, "exclude": []}) == {"rename": {}, "exclude": []}
    assert flatten({}) == {}


def test_keys_that_look_like_paths_keep_apart_from_paths() -> None:
    config = {"a.b": 1, "a": {"b": 2, "c.d": 3, "": 4}, "e[0]": 5, "e": [6]}
    assert flatten(config) == {
        '["a.b"]': 1,
        "a.b": 2,
        'a["c.d"]': 3,
        'a[""]': 4,
        '["e[0]"]': 5,
        "e.0": 6,
    }


def test_keys_that_are_no_text_are_written_as_text() -> None:
    assert flatten({"rates": {1000: 0.1, Color.RED: 0.2}}) == {"rates.1000": 0.1, "rates.RED": 0.2}


def test_keys_that_are_written_alike_are_an_error() -> None:
    with pytest.raises(TrackingError, match=r"two values named 'rates\.1'.*\n.*\n.*rename one"):
        flatten({"rates": {1: 0.1, "1": 0.2}})
