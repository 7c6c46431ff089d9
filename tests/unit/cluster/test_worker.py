"""When a worker leaves."""

from __future__ import annotations

import pytest

from runner.cluster.worker import is_leaving


@pytest.mark.parametrize(
    ("remaining", "synchronous", "leaves"),
    [
        (None, False, False),
        (None, True, False),
        (20.0, False, True),
        (20.0, True, False),
        (1.5, True, True),
    ],
)
def test_a_synchronous_worker_stays_after_a_signal_as_long_as_it_can(
    remaining: float | None, synchronous: bool, leaves: bool
) -> None:
    assert is_leaving(remaining, synchronous=synchronous) == leaves
