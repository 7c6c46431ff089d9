"""Epochs end where those of `keras.Model.fit` end."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from runner.config.epochs import Epochs

COUNTS = st.integers(1, 12)


def _lengths(steps: int, batches: int, *, meets_end: bool) -> Iterator[int]:
    """Yields the steps of each epoch of `fit`, as Keras's `EpochIterator` counts them."""
    seen = 0
    while True:
        taken = 0
        while taken < steps:
            if seen == batches:  # Known before the step, or met by it.
                seen = 0
                break
            seen, taken = seen + 1, taken + 1
        if seen == batches and not meets_end:
            seen = 0
        yield taken


@given(COUNTS, COUNTS, st.booleans(), st.integers(0, 3))
def test_an_epoch_ends_with_the_pass(
    length: int, batches: int, meets_end: bool, first: int
) -> None:
    epochs = Epochs(length, batches, first, meets_end)
    step, lengths = 0, _lengths(length, batches, meets_end=meets_end)
    for index in range(first, first + 8):
        for place in range(next(lengths)):
            assert (epochs.place(step), epochs.done(step)) == (place, index)
            step += 1
        assert epochs.steps(index + 1) == step
        assert epochs.place(step) == 0


@given(COUNTS, COUNTS)
def test_an_epoch_continues_in_the_next_pass(length: int, count: int) -> None:
    epochs = Epochs(length)
    assert epochs.steps(count) == length * count
    assert epochs.done(length * count - 1) == count - 1
    assert (epochs.done(length * count), epochs.place(length * count)) == (count, 0)
