from __future__ import annotations

import numpy as np
import pytest

from runner.inputs.splits import require_batches, split


def test_splits_share_nothing_and_leave_nothing_out() -> None:
    found = split(50, 0.1, 0.2)
    parts = (found.train, found.validation, found.test)
    assert [len(each) for each in parts] == [35, 5, 10]
    assert sorted(np.concatenate(parts)) == list(range(50))


def test_the_same_count_is_always_divided_the_same_way() -> None:
    assert split(50, 0.1, 0.2).test.tolist() == split(50, 0.1, 0.2).test.tolist()
    assert split(50, 0.1, 0.2).test.tolist() != list(range(5, 15))


def test_a_part_is_at_least_one_example() -> None:
    found = split(3, 0.01, 0.01)
    assert [len(each) for each in (found.train, found.validation, found.test)] == [1, 1, 1]


@pytest.mark.parametrize("parts", [(0.0, 0.1), (0.1, -0.1), (0.5, 0.5), (float("nan"), 0.1)])
def test_parts_that_leave_nothing(parts: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="both must be above 0, and together below 1"):
        require_batches(1, *parts)
    with pytest.raises(ValueError, match="batch_size is 0; it must be at least 1"):
        require_batches(0, 0.1, 0.1)
