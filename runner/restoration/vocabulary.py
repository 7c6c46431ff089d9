"""Moves rows or columns between vocabularies, token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Conversion, copy_of_initial


@dataclass(frozen=True)
class VocabularyRemap(Conversion):
    """Gives every token its old row (or column); tokens without one keep their initial value.

    Attributes:
      axis: the axis that counts tokens, not negative.
      old_index: for each index of the variable along `axis` the tensor's index, -1 for none.
    """

    axis: int
    old_index: tuple[int, ...]

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return -1 in self.old_index

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if self.axis >= len(shape) or max(self.old_index, default=-1) >= shape[self.axis]:
            raise ValueError(f"axis {self.axis} of {list(shape)} is too short for the vocabulary")
        return (*shape[: self.axis], len(self.old_index), *shape[self.axis + 1 :])

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        index = np.asarray(self.old_index, np.int64)
        if not self.needs_initial:
            return np.take(value, index, axis=self.axis)
        result = copy_of_initial(initial, self.shape(value.shape))
        known = np.flatnonzero(index >= 0)
        rows = np.moveaxis(result, self.axis, 0)
        rows[known] = np.moveaxis(value, self.axis, 0)[index[known]]
        return result

    def describe(self) -> str:
        """See `Conversion.describe`."""
        new = self.old_index.count(-1)
        kept = f", {new:,} keep their initial value" if new else ""
        return f"{len(self.old_index) - new:,} tokens moved along axis {self.axis}{kept}"

    def part(self, start: int, size: int) -> VocabularyRemap:
        """Returns the remapping of the block of `size` tokens that begins at `start`."""
        return VocabularyRemap(self.axis, self.old_index[start : start + size])


def remap(
    old: Sequence[str], new: Sequence[str], axis: int, old_size: int, new_size: int
) -> VocabularyRemap:
    """Returns the remapping between two vocabularies.

    Rows beyond a vocabulary's end, as buckets for unknown tokens are, belong to no token: those of
    the checkpoint are left out and those of the variable keep their initial value.

    Args:
      old: the tokens of the checkpoint, by index.
      new: the tokens of the variable, by index.
      axis: the axis that counts tokens, not negative.
      old_size: the tensor's length along it.
      new_size: the variable's length along it.

    Raises:
      ValueError: when a vocabulary is longer than its axis or names a token twice.
    """
    for which, tokens, size in (("old", old, old_size), ("new", new, new_size)):
        if len(tokens) > size:
            raise ValueError(
                f"the {which} vocabulary has {len(tokens):,} tokens, axis {axis} only {size:,}"
            )
        if len(set(tokens)) < len(tokens):
            ((twice, _),) = Counter(tokens).most_common(1)
            raise ValueError(f"the {which} vocabulary names {twice!r} twice")
    index = {token: position for position, token in enumerate(old)}
    moved = [index.get(token, -1) for token in new]
    return VocabularyRemap(axis, (*moved, *(-1 for _ in range(new_size - len(new)))))


def read_vocabulary(path: str) -> tuple[str, ...]:
    """Returns the tokens of a UTF-8 file, one a line, in the order of their index.

    Raises:
      OSError: when the file cannot be read.
      UnicodeDecodeError: when it is not UTF-8.
    """
    text = Path(path).read_text(encoding="utf-8")
    # Not splitlines(): a token may hold one of the separators that Unicode knows besides \n.
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
