"""What `Estimator.predict` yields: chosen predictions, one example after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def chosen(predictions: Any, keys: Iterable[str] | str | None) -> Any:
    """Returns the predictions of some names, all of them for None.

    Raises:
      ValueError: when there are none of these names.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    chosen = {name: value for name, value in predictions.items() if name in wanted}
    if not chosen:
        known = list(predictions)
        raise ValueError(f"Expected to run at least one output from {known}, provided {wanted}.")
    return chosen


def examples(batch: Any) -> Iterator[Any]:
    """Yields what a batch of predictions holds for each example.

    Raises:
      ValueError: when its predictions differ in length.
    """
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {name: len(value) for name, value in batch.items()}
    length = next(iter(lengths.values()))
    for name, other in lengths.items():
        if other != length:
            raise ValueError(
                f"Batch length of predictions should be same. {name} has different batch length "
                "than others."
            )
    for index in range(length):
        yield {name: value[index] for name, value in batch.items()}
