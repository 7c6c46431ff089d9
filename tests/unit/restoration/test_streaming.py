from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.errors import CheckpointError, Problem
from runner.restoration import streaming
from runner.restoration.conversions import Slice, Transpose
from runner.restoration.plan import Assignment, SourceTensor
from runner.restoration.streaming import batches, converted_values, is_taken, taken_values
from runner.restoration.variables import StateClass, VariableSpec

tf1 = tf.compat.v1


class Arrays(CheckpointReader):
    """Gives arrays and records which names it was asked for."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays
        self.asked: list[str] = []

    def spec(self) -> CheckpointSpec:
        raise NotImplementedError

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for name in names:
            self.asked.append(name)
            if name not in self.arrays:
                raise CheckpointError(Problem(f"no tensor {name}"))
            yield name, self.arrays[name]


def assignment(name: str, size: int, *pieces: tuple[str, str]) -> Assignment:
    spec = VariableSpec(TensorSpec(name, (size,), "float32"), StateClass.WEIGHT, True, "Const")
    tensors = tuple(SourceTensor(s, TensorSpec(t, (size,), "float32")) for s, t in pieces)
    return Assignment(spec, pieces[0][0], tensors)


def test_batches_are_bounded_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BATCH_BYTES", 20)
    sizes = (1, 4, 1, 9, 2, 3)
    assignments = [assignment(f"v{at}", size, ("a", "x")) for at, size in enumerate(sizes)]
    with tf.Graph().as_default():
        variables = {
            each.variable.name: tf1.get_variable(each.variable.name, each.variable.tensor.shape)
            for each in assignments
        }
        made = list(batches(assignments, variables))
    assert made == [assignments[:2], assignments[2:3], assignments[3:4], assignments[4:]]


def test_each_source_is_read_in_one_pass_and_not_ahead() -> None:
    a, b = (
        Arrays(x=np.zeros(2, np.float32), y=np.ones(2, np.float32)),
        Arrays(z=np.full(2, 3, np.float32)),
    )
    assignments = [
        assignment("v", 2, ("a", "x")),
        assignment("w", 2, ("a", "y"), ("b", "z")),
        assignment("u", 2, ("a", "x")),
    ]
    values = converted_values(assignments, {"a": a, "b": b}, {})
    assert a.asked == []
    next(values)
    assert (a.asked, b.asked) == (["x"], [])
    np.testing.assert_array_equal(next(values)[1], [2, 2])
    next(values)
    assert (a.asked, b.asked) == (["x", "y", "x"], ["z"])


def test_a_view_of_foreign_memory_is_copied() -> None:
    foreign = np.frombuffer(np.ones(2, np.float32).tobytes(), np.float32)
    own = np.ones((2, 2), np.float32)[0]
    assignments = [assignment("v", 2, ("a", "foreign")), assignment("w", 2, ("a", "own"))]
    reader = Arrays(foreign=foreign, own=own)
    first, second = (value for _, value in converted_values(assignments, {"a": reader}, {}))
    assert first is not foreign
    np.testing.assert_array_equal(first, foreign)
    assert second is own


def test_memory_of_a_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(np.ones(2, np.float32).tobytes())
    with (tmp_path / "file").open("r+b") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float32)
    assignments = [assignment("v", 2, ("a", "mapped"))]
    ((_, value),) = converted_values(assignments, {"a": Arrays(mapped=mapped)}, {})
    assert not np.shares_memory(value, mapped)


def test_an_error_of_a_source_names_the_scaffold() -> None:
    values = converted_values([assignment("v", 2, ("cnn", "gone"))], {"cnn": Arrays()}, {})
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: no tensor gone"):
        next(values)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros(3, np.float32), r"a float32 of shape \[3\]"),
        (np.zeros(2, np.float64), r"a float64 of shape \[2\]"),
        (np.array([b"a", b"b"], object), r"a string of shape \[2\]"),
    ],
)
def test_a_value_that_does_not_fit_its_variable_is_refused(value: Any, found: str) -> None:
    values = converted_values([assignment("v", 2, ("cnn", "x"))], {"cnn": Arrays(x=value)}, {})
    with pytest.raises(CheckpointError, match=rf"scaffolds\.cnn: x has changed .*, and .* {found}"):
        next(values)


def block(name: str, offset: int, size: int, tensor: str = "x") -> Assignment:
    spec = VariableSpec(TensorSpec(name, (size,), "float32"), StateClass.WEIGHT, True, "Const")
    source = TensorSpec(tensor, (6,), "float32")
    return Assignment(spec, "a", (SourceTensor("a", source, (Slice((offset,), (size,)),)),))


def test_only_tensors_and_blocks_without_further_conversion_are_taken() -> None:
    assert is_taken(assignment("v", 6, ("a", "x")))
    assert is_taken(block("v", 2, 3))
    assert not is_taken(replace(assignment("v", 6, ("a", "x")), pieces=()))
    assert not is_taken(assignment("v", 6, ("a", "x"), ("b", "x")))
    (piece,) = block("v", 2, 3).pieces
    twice = replace(piece, conversions=piece.conversions * 2)
    cast = replace(piece, conversions=(Transpose((0,)),))
    for other in (twice, cast):
        assert not is_taken(replace(block("v", 2, 3), pieces=(other,)))


def test_a_tensor_is_read_once_for_all_that_take_it() -> None:
    values = np.arange(6, dtype=np.float32)
    reader = Arrays(x=values, y=values + 1)
    looked = []

    def look(source: str, name: str, value: Any, taken: Any) -> None:
        looked.append((source, name, value.tolist(), taken))

    wanted = [
        block("v", 4, 2),
        assignment("y", 6, ("a", "y")),
        block("w", 0, 3),
        assignment("x", 6, ("a", "x")),
    ]
    found = {each.variable.name: value for each, value in taken_values("a", reader, wanted, look)}
    assert reader.asked == ["x", "y"]
    assert {name: value.tolist() for name, value in found.items()} == {
        "v": [4, 5],
        "w": [0, 1, 2],
        "x": [0, 1, 2, 3, 4, 5],
        "y": [1, 2, 3, 4, 5, 6],
    }
    assert looked[0] == ("a", "x", [4, 5], ((4,), (2,)))
    assert not np.shares_memory(found["x"], found["w"])


def test_a_taken_tensor_that_changed_is_refused() -> None:
    values = taken_values(
        "a", Arrays(x=np.zeros(5, np.float32)), [assignment("v", 6, ("a", "x"))], lambda *_: None
    )
    with pytest.raises(CheckpointError, match=r"scaffolds\.a: x has changed since it was planned"):
        next(values)
