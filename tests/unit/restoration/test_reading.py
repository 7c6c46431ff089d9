"""Values on their way from checkpoints to variables."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.errors import CheckpointError, Problem
from runner.planning.plan import Assignment, RestorationPlan
from runner.restoration import session_assigner
from runner.restoration.reading import NonFiniteTensors, checksum, converted_values
from runner.restoration.session_assigner import AssignOp, SessionAssigner
from runner.rules.conversions import Slice
from runner.rules.source_tensors import SourceTensor
from tests.support.plans import checkpoint, variable

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


def assignment(name: str, size: int, piece: tuple[str, str]) -> Assignment:
    """A vector that takes this tensor of this source."""
    source, tensor = piece
    taken = SourceTensor(source, TensorSpec(tensor, (size,), "float32"))
    return Assignment(variable(name, (size,)), source, taken)


def block(name: str, offset: int, size: int) -> Assignment:
    """A vector that takes a block of a tensor of 6 elements."""
    piece = SourceTensor("a", TensorSpec("x", (6,), "float32"), (Slice((offset,), (size,)),))
    return Assignment(variable(name, (size,)), "a", piece)


def test_batches_are_bounded_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_assigner, "BATCH_BYTES", 20)
    sizes = (1, 4, 1, 9, 2, 3)
    assignments = [assignment(f"v{at}", size, ("a", "x")) for at, size in enumerate(sizes)]
    with tf.Graph().as_default():
        targets = {
            each.variable.name: AssignOp(tf1.placeholder(tf.float32), tf.no_op())
            for each in assignments
        }
        with tf1.Session() as session:
            assigner = SessionAssigner(session, targets, variables={})
    batches = list(assigner.batches(assignments))
    assert batches == [assignments[:2], assignments[2:3], assignments[3:4], assignments[4:]]
    assert list(assigner.batches([])) == []


def test_values_of_one_operation_are_assigned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_assigner, "BATCH_BYTES", 20)
    keys, values, other = (assignment(name, 4, ("a", "x")) for name in "kva")
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf.no_op()
        targets = {
            "k": AssignOp(tf1.placeholder(tf.float32), table),
            "v": AssignOp(tf1.placeholder(tf.float32), table),
            "a": AssignOp(tf1.placeholder(tf.float32), tf.no_op()),
        }
        assigner = SessionAssigner(session, targets, variables={})
    assert list(assigner.batches([keys, values, other])) == [[keys, values], [other]]


def test_each_source_is_read_in_one_pass_and_not_ahead() -> None:
    a = Arrays(x=np.zeros(2, np.float32), y=np.ones(2, np.float32))
    b = Arrays(z=np.full(2, 3, np.float32))
    assignments = [
        assignment("v", 2, ("a", "x")),
        assignment("w", 2, ("b", "z")),
        assignment("u", 2, ("a", "y")),
    ]
    values = converted_values(assignments, {"a": a, "b": b}, {})
    assert a.asked == []
    next(values)
    assert (a.asked, b.asked) == (["x"], [])
    np.testing.assert_array_equal(next(values)[1], [3, 3])
    assert (a.asked, b.asked) == (["x"], ["z"])
    next(values)
    assert (a.asked, b.asked) == (["x", "y"], ["z"])


def test_a_tensor_that_several_variables_take_is_read_once_and_its_memory_never_shared() -> None:
    reader, seen = Arrays(x=np.arange(6, dtype=np.float32)), list[str]()
    wanted = [block("v", 4, 2), assignment("w", 6, ("a", "x")), assignment("u", 6, ("a", "x"))]
    values = converted_values(wanted, {"a": reader}, {}, lambda *tensor: seen.append(tensor[1]))
    v, w, u = (value for _, value in values)
    assert (v.tolist(), w.tolist(), u.tolist()) == ([4, 5], [*range(6)], [*range(6)])
    assert not any(np.shares_memory(*pair) for pair in itertools.combinations((v, w, u), 2))
    assert reader.asked == seen == ["x"]


def test_a_value_never_is_the_memory_of_something_else(tmp_path: Path) -> None:
    np.ones(2, np.float32).tofile(tmp_path / "file")
    given = {
        "file": np.memmap(tmp_path / "file", np.float32, "r+"),
        "buffer": np.frombuffer(np.ones(2, np.float32).tobytes(), np.float32),
        "view": np.ones((2, 2), np.float32)[:, 0],
        "own": np.ones(2, np.float32),
    }
    wanted = [assignment(name, 2, ("a", name)) for name in given]
    for each, value in converted_values(wanted, {"a": Arrays(**given)}, {}):
        np.testing.assert_array_equal(value, [1, 1])
        assert value.flags.owndata
        assert value.flags.c_contiguous
        assert np.shares_memory(value, given[each.variable.name]) == (each.variable.name == "own")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"scaffolds\.cnn: no tensor x"),
        (np.zeros(3, np.float32), r"scaffolds\.cnn: v cannot .* from x\n.* a float32 \[3\] for"),
        (np.zeros(2, np.float64), r"scaffolds\.cnn: v cannot .* from x\n.* a float64 \[2\] for"),
        (np.array([b"a", b"b"], object), r"v cannot be made from x\n.* a string \[2\] for"),
    ],
)
def test_a_value_that_does_not_fit_its_variable_is_refused(value: Any, message: str) -> None:
    reader = Arrays() if value is None else Arrays(x=value)
    values = converted_values([assignment("v", 2, ("cnn", "x"))], {"cnn": reader}, {})
    with pytest.raises(CheckpointError, match=message):
        next(values)


def test_a_checksum_is_of_the_bytes_and_of_strings_as_they_are_printed() -> None:
    values = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    whole = f"crc32c:{google_crc32c.value(values.tobytes()):08x}"
    assert checksum(values) == checksum(values.copy("F")) == whole
    one = values.copy()
    one[299, 999] = np.nextafter(one[299, 999], np.float32(0))
    assert checksum(one) != checksum(values)
    assert checksum(np.array(1.0)) != checksum(np.array(-1.0))
    assert checksum(np.array([], np.float32)) == "crc32c:00000000"
    assert checksum(np.array([b"a", "b"], object)) != checksum(np.array([b"ab", ""], object))


def finite(*scaffolds: str) -> RestorationPlan:
    """A plan whose scaffolds cnn and lstm refuse NaN and infinity if they are named."""
    sources = {"cnn": checkpoint(path="a/model"), "lstm": checkpoint(path="b/model")}
    return RestorationPlan((), sources, {}, finite=frozenset(scaffolds))


@pytest.mark.parametrize(
    ("value", "warns"),
    [
        *(
            (np.array([1, np.nan, -np.inf]).astype(dtype), True)
            for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.complex64)
        ),
        # Finite, though their sum is not; other types; nothing at all.
        (np.array([3e38, 3e38], np.float32), False),
        (np.array([6e4, 6e4], np.float16), False),
        (np.array([1, 2]), False),
        (np.array([b"nan"], object), False),
        (np.zeros((0,), np.float32), False),
    ],
)
def test_nan_and_infinity_are_warned_of_once(
    value: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    non_finite = NonFiniteTensors()
    non_finite.on_tensor("cnn", "x", value)
    with caplog.at_level(logging.WARNING):
        non_finite.report(finite("lstm"))
        non_finite.report(finite("cnn"))
    assert [record.message for record in caplog.records] == [
        "scaffolds.cnn: x in a/model holds NaN or infinite values; "
        "scaffolds.cnn.finite=true refuses them"
    ] * warns


def test_all_findings_of_sources_that_must_be_finite_are_one_error() -> None:
    non_finite = NonFiniteTensors()
    for source in ("cnn", "lstm"):
        for tensor in ("x", "y"):
            non_finite.on_tensor(source, tensor, np.array([np.nan]))
    with pytest.raises(CheckpointError, match=r"scaffolds\.lstm: x in b/model holds NaN") as caught:
        non_finite.report(finite("lstm"))
    assert len(caught.value.problems) == 2
