from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import runner
from runner.checkpoints.formats.word_vectors import tokens
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError

WORDS = ("the", "naïve", "1.5", "new york", "end")
VALUES = np.arange(20, dtype=np.float32).reshape(5, 4) / 8 - 1


def text(header: str = "", end: str = "\n") -> bytes:
    lines = [
        f"{word} {' '.join(f'{number:g}' for number in row)}"
        for word, row in zip(WORDS, VALUES, strict=True)
    ]
    return (header + end.join(lines) + end).encode()


def binary(separator: bytes = b"\n") -> bytes:
    words = [word.replace(" ", "_").encode() for word in WORDS]
    rows = [word + b" " + row.tobytes() for word, row in zip(words, VALUES, strict=True)]
    return b"5 4\n" + separator.join(rows) + separator


FORMS = {
    "GloVe": text(),
    "GloVe without a last newline": text()[:-1],
    "text of word2vec": text("5 4\n"),
    "text of Windows": text(end="\r\n"),
    "fastText, with trailing spaces": text("5 4\n", " \n"),
    "binary": binary(),
    "binary without newlines": binary(b""),
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors_and_tokens_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(FORMS[form])
    ((name, value),) = open_reader(str(path)).read(["vectors"])
    assert (name, value.tolist()) == ("vectors", VALUES.tolist())
    assert tuple(token.replace("_", " ") for token in tokens(str(path))) == WORDS


@pytest.mark.parametrize(
    "content",
    [
        text().replace(b" 0.5", b""),
        text().replace(b"0.5", b"x.5"),
        b"900000000 300\nthe 0.1 0.2 0.3 0.4\n",
        binary()[:-5],
        text("4 4\n"),  # More vectors than the first line says.
        binary().replace(b"5 4\n", b"4 4\n"),
    ],
)
def test_damaged_files_are_errors_that_name_the_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        list(open_reader(str(path)).read(["vectors"]))


def test_a_long_line_is_judged_at_once(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"99999 4\n" + b" 1" * 30_000 + b" x\n")
    with pytest.raises(CheckpointError, match="cannot be read as a file of word vectors"):
        list(open_reader(str(tmp_path / "v")).read(["vectors"]))


def test_rows_are_taken_by_token(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "glove.txt").write_bytes(text())
    (tmp_path / "new.txt").write_text("end\nunknown\nthe\n")
    embeddings = tf.Variable(tf.fill([3, 4], 9.0), name="embed")
    files = {"old": str(tmp_path / "glove.txt"), "new": str(tmp_path / "new.txt"), "axis": 0}
    scaffold = {
        "variables": {"include": ["embed"]},
        "checkpoint": files["old"],
        "rename": {"embed": "vectors"},
        "vocabulary": {"embed": files},
    }
    runner.warm_start({"embed": embeddings}, {"words": scaffold})
    assert embeddings.numpy().tolist() == [VALUES[4].tolist(), [9.0] * 4, VALUES[0].tolist()]
