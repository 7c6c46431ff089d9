from __future__ import annotations

import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.errors import CheckpointError
from runner.restoration.verification import NonFinite

PATHS = {"cnn": "a/model", "lstm": "b/model"}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_nan_and_infinity_are_warned_of_once(dtype: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = NonFinite()
    found.look("cnn", "x", np.array([1, np.nan, -np.inf]).astype(dtype))
    with caplog.at_level(logging.WARNING):
        found.report(PATHS, frozenset({"lstm"}))
        found.report(PATHS, frozenset({"cnn"}))
    assert [record.message for record in caplog.records] == [
        "scaffolds.cnn: x in a/model holds 2 NaN or infinite values; "
        "scaffolds.cnn.finite=true refuses them"
    ]


@pytest.mark.parametrize(
    "value",
    [
        np.array([3e38, 3e38], np.float32),
        np.array([6e4, 6e4], np.float16),
        np.array([1, 2]),
        np.array([True]),
        np.array([b"nan"], object),
        np.zeros((0,), np.float32),
        np.array(1.0, np.float32),
    ],
)
def test_finite_values_and_other_types_are_no_finding(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = NonFinite()
    found.look("cnn", "x", value)
    found.report(PATHS, frozenset({"cnn"}))
    assert not caplog.records


def test_all_findings_of_sources_that_must_be_finite_are_one_error() -> None:
    found = NonFinite()
    for source in PATHS:
        for tensor in ("x", "y"):
            found.look(source, tensor, np.array([np.nan]))
    with pytest.raises(CheckpointError, match=r"scaffolds\.lstm: x in b/model holds 1") as caught:
        found.report(PATHS, frozenset({"lstm"}))
    assert len(caught.value.problems) == 2


def test_what_is_found_in_blocks_of_a_tensor_is_added(caplog: pytest.LogCaptureFixture) -> None:
    found = NonFinite()
    for row in (0, 1, 1):
        found.look("cnn", "x", np.array([[np.nan, 1.0]]), ((row, 0), (1, 2)))
    found.report({"cnn": "p"}, frozenset())
    assert "x in p holds 2 NaN" in caplog.text
    caplog.clear()
    found.look("cnn", "x", np.array([[np.nan, 1.0]]), ((0, 0), (1, 2)))
    found.look("cnn", "x", np.array([[np.nan, 1.0], [1.0, 1.0]]))
    found.report({"cnn": "p"}, frozenset())
    assert "x in p holds 1 NaN" in caplog.text
