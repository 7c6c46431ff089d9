"""Moves rows or columns by token, from the places of one vocabulary to another's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.formats import word_vectors
from runner.checkpoints.recognition import is_word_vectors
from runner.errors import CheckpointError
from runner.rules.conversions import Conversion


@dataclass(frozen=True)
class VocabularyRemap(Conversion):
    """Moves every token's row or column to its new place; new tokens keep their initial value.

    Attributes:
      axis: the axis that counts tokens, not negative.
      old_index: for each index of the variable along `axis` the tensor's index, -1 for a new token.
    """

    axis: int
    old_index: tuple[int, ...]

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return -1 in self.old_index

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return (*shape[: self.axis], len(self.old_index), *shape[self.axis + 1 :])

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        index = np.asarray(self.old_index, np.int64)
        if not self.needs_initial:
            return np.take(value, index, axis=self.axis)
        result = np.array(initial)
        known = np.flatnonzero(index >= 0)
        rows = np.moveaxis(result, self.axis, 0)
        rows[known] = np.moveaxis(value, self.axis, 0)[index[known]]
        return result

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        result, index = before.copy(), np.asarray(self.old_index, np.int64)
        known = np.flatnonzero(index >= 0)
        rows = np.moveaxis(result, self.axis, 0)
        rows[index[known]] = np.moveaxis(value, self.axis, 0)[known]
        return result

    def __str__(self) -> str:
        new = self.old_index.count(-1)
        rest = f", {new:,} keep their initial value" if new else ""
        return f"{len(self.old_index) - new:,} tokens moved along axis {self.axis}{rest}"

    def part(self, start: int, size: int) -> VocabularyRemap:
        """Returns the remapping of the block of `size` tokens that begins at `start`."""
        return VocabularyRemap(self.axis, self.old_index[start : start + size])


def remap(
    old: Sequence[str], new: Sequence[str], axis: int, *, old_size: int, new_size: int
) -> VocabularyRemap:
    """Returns the remapping between two vocabularies.

    Rows beyond a vocabulary's end, e.g. buckets for unknown tokens, belong to no token: the
    checkpoint's are left out, and the variable's keep their initial value.

    `axis`, not negative, counts tokens: `old_size` in the tensor, `new_size` in the variable.

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


# Larger than any vocabulary; its tokens take a few times as much in memory.
_MAX_VOCABULARY = 256 << 20
# Of Windows, of all other systems, and of old ones.
_LINE_END = re.compile(r"\r\n|\n|\r")


def read_vocabulary(path: str) -> tuple[str, ...]:
    """Returns the tokens of a UTF-8 file, one a line, in the order of their index.

    A file of word vectors is the vocabulary of its own rows.

    Raises:
      ValueError: when the file cannot be read, is not UTF-8, or has more than a token in each line.
    """
    try:
        path = files.local_copy(path)
        with files.reading(path) as file:
            if is_word_vectors(file.read(1024)):
                return word_vectors.tokens(path)
        text = files.read_text(path, _MAX_VOCABULARY)
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        raise ValueError(f"the vocabulary {path} cannot be read: {error}") from error
    # Not splitlines(): a token may hold one of the separators that Unicode knows besides these.
    lines = _LINE_END.split(text.removeprefix("\ufeff"))
    tokens = lines if lines[-1] else lines[:-1]
    if len(tokens) > 1 and all("\t" in token for token in tokens):
        raise ValueError(
            f"the vocabulary {path} has a tab in every line, such as {tokens[0]!r}: a line is a "
            "token and nothing else (cut -f1 keeps what is before the tab)"
        )
    return tuple(tokens)
