"""Values on their way from checkpoints to variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.bundle import open_bundle
from runner.checkpoints.reader import Bundle, CheckpointReader, CheckpointSpec, TensorSpec
from runner.errors import CheckpointError, Problem
from runner.restoration import restorer, session_assigner
from runner.restoration.conversions import Slice
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.reading import NonFinite, checksum, converted_values
from runner.restoration.restorer import restore_operation, restored_in_graph
from runner.restoration.session_assigner import AssignOp, SessionAssigner
from runner.restoration.source_tensors import SourceTensor
from tests.conformance import goldens
from tests.support.plans import checkpoint, variable
from tests.support.restoring import save_bundle

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
    return Assignment(variable(name, (size,)), source, (taken,))


def block(name: str, offset: int, size: int) -> Assignment:
    """A vector that takes a block of a tensor of 6 elements."""
    piece = SourceTensor("a", TensorSpec("x", (6,), "float32"), (Slice((offset,), (size,)),))
    return Assignment(variable(name, (size,)), "a", (piece,))


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


def test_values_of_one_operation_are_assigned_together_and_of_one_tensor_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_assigner, "BATCH_BYTES", 20)
    keys, values, first, second = (assignment(name, 4, ("a", "x")) for name in "kvab")
    with tf.Graph().as_default(), tf1.Session() as session:
        table, shared = tf.no_op(), tf1.placeholder(tf.float32)
        targets = {
            "k": AssignOp(tf1.placeholder(tf.float32), table),
            "v": AssignOp(tf1.placeholder(tf.float32), table),
            "a": AssignOp(shared, tf.no_op()),
            "b": AssignOp(shared, tf.no_op()),
        }
        assigner = SessionAssigner(session, targets, variables={})
    batches = list(assigner.batches([keys, values, first, second]))
    assert batches == [[keys, values], [first], [second]]


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


def test_only_tensors_and_blocks_without_further_conversion_are_restored_in_the_graph() -> None:
    assert restored_in_graph(assignment("v", 6, ("a", "x")))
    assert restored_in_graph(block("v", 2, 3))
    (piece,) = block("v", 2, 3).pieces
    twice = replace(piece, conversions=piece.conversions * 2)
    assert not restored_in_graph(replace(block("v", 2, 3), pieces=(twice,)))


def test_chunks_of_a_source_are_bounded_and_read_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restorer, "CHUNK_BYTES", 20)
    names = [f"v{at}" for at in range(6)]
    sizes = dict(zip(names, (1, 4, 1, 9, 2, 3), strict=True))
    with tf.Graph().as_default() as graph:
        variables = {name: tf1.get_variable(name, [size]) for name, size in sizes.items()}
        wanted = [assignment(name, sizes[name], ("a", name)) for name in reversed(names)]
        bundle = Bundle("prefix", {name: name for name in names})
        restore_operation(wanted, variables, {"a": bundle}, on_value=lambda *_: None)
        reads = [op for op in graph.get_operations() if op.type == "RestoreV2"]
    assert [len(each.outputs) for each in reads] == [2, 1, 1, 2]
    # TensorFlow makes an operation wait through its inputs where these wait already.
    waits = [any(each.op.control_inputs for each in read.inputs) for read in reads]
    assert waits == [False, True, True, True]


def test_every_value_is_passed_on_as_it_is_read_a_block_and_strings_too(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def on_value(assignment: Assignment, value: Any) -> None:
        seen[assignment.variable.name] = value.tolist()

    values: dict[str, Any] = {"x": np.arange(6, dtype=np.float32), "s": np.array("text", object)}
    bundle = Bundle(save_bundle(tmp_path, values), {name: name for name in values})
    string = SourceTensor("a", TensorSpec("s", (), "string"))
    wanted = [
        block("v", 4, 2),
        assignment("w", 6, ("a", "x")),
        Assignment(variable("s", (), "string"), "a", (string,)),
    ]
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = {
            "v": tf1.get_variable("v", [2]),
            "w": tf1.get_variable("w", [6], use_resource=False),
            "s": tf1.get_variable("s", [], tf.string, tf1.zeros_initializer()),
        }
        session.run(restore_operation(wanted, variables, {"a": bundle}, on_value=on_value))
        found = session.run(variables)
    assert found["v"].tolist() == [4, 5]
    assert found["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["s"] == b"text"
    assert seen == {"v": [4, 5], "w": [0, 1, 2, 3, 4, 5], "s": b"text"}


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


def test_a_bundle_knows_the_checksums_of_whole_tensors_of_every_dtype(tmp_path: Path) -> None:
    dtypes = (tf.float32, tf.bfloat16, tf.float16, tf.complex128, tf.int64, tf.uint8, tf.bool)
    values: dict[str, Any] = {dtype.name: tf.cast([[0, 1], [1, 0]], dtype) for dtype in dtypes}
    prefix = goldens.save_bundle(tmp_path / "whole", values | {"empty": [], "string": ["text"]})
    reader = open_bundle(prefix)
    found = {name: checksum(value) for name, value in reader.read([*values, "empty"])}
    assert reader.bundle().checksums == found


def test_a_bundle_does_not_know_the_checksum_of_a_partitioned_variable(tmp_path: Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "parts"),
        tensor_names=["v", "v"],
        shape_and_slices=["4 0,2", "4 2,2"],
        tensors=[tf.zeros([2]), tf.ones([2])],
    )
    bundle = open_bundle(str(tmp_path / "parts")).bundle()
    assert "v" in bundle.keys
    assert "v" not in bundle.checksums


def test_what_is_on_a_parameter_server_is_read_by_the_chief() -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:1"):
            variables = {"v": tf1.get_variable("v", [2])}
        bundle = Bundle("prefix", {"x": "x"})
        restore_operation(
            [assignment("v", 2, ("a", "x"))], variables, {"a": bundle}, on_value=print
        )
        places = {
            operation.device
            for operation in graph.get_operations()
            if operation.type in ("RestoreV2", "PyFunc")
        }
    assert places == {"/job:chief/task:0/device:CPU:0"}


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
    non_finite = NonFinite()
    non_finite.on_tensor("cnn", "x", value)
    with caplog.at_level(logging.WARNING):
        non_finite.report(finite("lstm"))
        non_finite.report(finite("cnn"))
    assert [record.message for record in caplog.records] == [
        "scaffolds.cnn: x in a/model holds NaN or infinite values; "
        "scaffolds.cnn.finite=true refuses them"
    ] * warns


def test_all_findings_of_sources_that_must_be_finite_are_one_error() -> None:
    non_finite = NonFinite()
    for source in ("cnn", "lstm"):
        for tensor in ("x", "y"):
            non_finite.on_tensor(source, tensor, np.array([np.nan]))
    with pytest.raises(CheckpointError, match=r"scaffolds\.lstm: x in b/model holds NaN") as caught:
        non_finite.report(finite("lstm"))
    assert len(caught.value.problems) == 2
