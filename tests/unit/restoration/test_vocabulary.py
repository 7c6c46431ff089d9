"""Rows and columns move with their tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.restoration.vocabulary import VocabularyRemap, read_vocabulary, remap

OLD, NEW = ("the", "cat", "sat"), ("sat", "dog", "the", "cat", "ran")


def test_every_known_token_keeps_its_row() -> None:
    conversion = remap(OLD, NEW, 0, old_size=3, new_size=5)
    value = np.arange(6.0).reshape(3, 2)
    initial = np.full((5, 2), -1.0)
    assert conversion.needs_initial
    assert conversion.shape((3, 2)) == (5, 2)
    assert conversion.apply(value, initial).tolist() == [[4, 5], [-1, -1], [0, 1], [2, 3], [-1, -1]]
    assert conversion.describe() == "3 tokens moved along axis 0, 2 keep their initial value"


def test_columns_and_vectors_move_likewise() -> None:
    columns = remap(OLD, ("cat", "the"), 1, old_size=3, new_size=2)
    assert not columns.needs_initial
    assert columns.apply(np.array([[1, 2, 3], [4, 5, 6]])).tolist() == [[2, 1], [5, 4]]
    assert columns.describe() == "2 tokens moved along axis 1"
    new = remap(OLD, ("cat", "dog"), 1, old_size=3, new_size=2)
    value, initial = np.arange(12).reshape(2, 3, 2), np.full((2, 2, 2), -1)
    assert new.apply(value, initial).tolist() == [
        [[2, 3], [-1, -1]],
        [[8, 9], [-1, -1]],
    ]
    vector = remap(OLD, NEW[:1], 0, old_size=3, new_size=1)
    assert vector.apply(np.array([1, 2, 3])).tolist() == [3]


def test_rows_beyond_the_vocabularies_belong_to_no_token() -> None:
    conversion = remap(("a", "b"), ("b",), 0, old_size=4, new_size=3)
    value, initial = np.arange(4), np.full(3, -1)
    assert conversion.apply(value, initial).tolist() == [1, -1, -1]


def test_parts_of_a_remapped_variable_make_the_whole() -> None:
    generator = np.random.default_rng(1)
    tokens = [f"t{index}" for index in range(30)]
    for _ in range(20):
        old = list(generator.permutation(tokens)[: generator.integers(1, 30)])
        new = list(generator.permutation(tokens)[: generator.integers(2, 30)])
        value, initial = generator.normal(size=(len(old), 3)), generator.normal(size=(len(new), 3))
        conversion = remap(old, new, 0, len(old), len(new))
        whole = conversion.apply(value, initial)
        for row, token in enumerate(new):
            expected = value[old.index(token)] if token in old else initial[row]
            np.testing.assert_array_equal(whole[row], expected)
        cut = int(generator.integers(1, len(new)))
        parts = [
            conversion.part(start, stop - start).apply(value, initial[start:stop])
            for start, stop in ((0, cut), (cut, len(new)))
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_vocabulary_longer_than_its_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="the old vocabulary has 3 tokens, axis 0 only 2"):
        remap(OLD, NEW, 0, old_size=2, new_size=5)
    with pytest.raises(ValueError, match="the new vocabulary has 5 tokens, axis 0 only 4"):
        remap(OLD, NEW, 0, old_size=3, new_size=4)


def test_a_token_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="the new vocabulary names 'cat' twice"):
        remap(OLD, ("cat", "dog", "cat"), 0, old_size=3, new_size=3)


def test_a_tensor_too_short_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axis 0 of \[2\] is too short"):
        VocabularyRemap(0, (2, 0)).shape((2,))
    with pytest.raises(ValueError, match=r"axis 1 of \[2\] is too short"):
        VocabularyRemap(1, (0,)).shape((2,))


def test_the_initial_value_is_needed_for_new_tokens() -> None:
    with pytest.raises(ValueError, match="an initial value of shape"):
        remap(OLD, NEW, 0, 3, 5).apply(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ()),
        ("a\nb\n", ("a", "b")),
        ("a\nb", ("a", "b")),
        ("ä\n\u2028\n \n", ("ä", "\u2028", " ")),
        ("a\n\nb\n", ("a", "", "b")),
    ],
)
def test_a_file_holds_one_token_a_line(text: str, tokens: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_text(text, encoding="utf-8")
    assert read_vocabulary(str(path)) == tokens
