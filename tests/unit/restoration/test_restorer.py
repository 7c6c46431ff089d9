"""Plans carried out in sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import Initialize
from runner.errors import CheckpointError, PlanError, Problem
from runner.planning.variables import Partition
from runner.restoration.initialization import necessary
from runner.restoration.reading import value_hash
from runner.restoration.restorer import Restorer
from runner.rules.conversions import PadOrSlice, Slice, Transpose
from tests.support.restoring import SAVE, Case, make_variable, numbers, save_bundle, save_npz

tf1 = tf.compat.v1
pytestmark = pytest.mark.usefixtures("graph")


@pytest.mark.parametrize("initialize", list(Initialize))
@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_variables_take_the_tensors_of_their_sources_and_others_their_initial_values(
    tmp_path: Path, form: str, use_resource: bool, initialize: Initialize
) -> None:
    cnn, lstm = {"x": numbers(3, 2)}, {"x": numbers(4, seed=1), "y": numbers(seed=2)}
    case = Case(cnn=SAVE[form](tmp_path / "a", cnn), lstm=SAVE[form](tmp_path / "b", lstm))
    kwargs = {"use_resource": use_resource}
    case.take(make_variable("a", np.zeros((3, 2)), **kwargs), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(4), **kwargs), ("lstm", "x"))
    case.take(make_variable("c", 0.0, **kwargs), ("lstm", "y"))
    case.take(make_variable("head", [7.0], **kwargs))
    values = case.run(initialize=initialize, verify=True)
    expected = {"a": cnn["x"], "b": lstm["x"], "c": lstm["y"], "head": np.array([7.0])}
    assert {name: value.tolist() for name, value in values.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_one_tensor_may_be_given_to_two_variables_that_then_go_their_own_ways(
    tmp_path: Path, form: str, use_resource: bool
) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {"x": numbers(100)}))
    for name in ("a", "b"):
        case.take(make_variable(name, np.zeros(100), use_resource=use_resource), ("cnn", "x"))
    added = case.variables["a"].assign_add(np.ones(100, np.float32))
    restorer = case.restorer(verify=True)
    with tf1.Session() as session:
        restorer.warm_start(session, None, None, init_fn=None)
        session.run(added)
        values = session.run(case.variables)
    np.testing.assert_array_equal(values["a"], numbers(100) + 1)
    np.testing.assert_array_equal(values["b"], numbers(100))


def test_variables_made_from_one_initial_value_get_their_own_values(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2), "y": numbers(2, seed=1)}))
    initial = tf.zeros([2])
    case.take(tf1.get_variable("a", initializer=initial), ("cnn", "x"))
    case.take(tf1.get_variable("b", initializer=initial), ("cnn", "y"))
    values = case.run()
    np.testing.assert_array_equal(values["a"], numbers(2))
    np.testing.assert_array_equal(values["b"], numbers(2, seed=1))


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_parts_of_a_partitioned_variable_take_their_slices(
    tmp_path: Path, form: str, use_resource: bool
) -> None:
    whole = numbers(5, 3)
    case = Case(cnn=SAVE[form](tmp_path, {"table": whole}))
    variable = tf1.get_variable(
        "table",
        [5, 3],
        initializer=tf1.zeros_initializer(),
        partitioner=tf1.fixed_size_partitioner(2),
        use_resource=use_resource,
    )
    for part in variable:
        info = part._get_save_slice_info()
        piece = ("cnn", "table", (Slice(tuple(info.var_offset), tuple(info.var_shape)),))
        case.take(part, piece, partition=Partition("table", (5, 3), tuple(info.var_offset)))
    values = case.run(initialize=Initialize.remaining, verify=True)
    np.testing.assert_array_equal(np.concatenate([values[p.op.name] for p in variable]), whole)


@pytest.mark.parametrize("form", SAVE)
def test_conversions_are_applied(tmp_path: Path, form: str) -> None:
    first = {"x": numbers(2, 3)}
    case = Case(a=SAVE[form](tmp_path / "a", first))
    case.take(make_variable("t", np.zeros((3, 2))), ("a", "x", (Transpose((1, 0)),)))
    values = case.run(verify=True)
    np.testing.assert_array_equal(values["t"], first["x"].T)


@pytest.mark.parametrize("initialize", list(Initialize))
def test_a_part_that_no_source_gives_keeps_its_initial_value(
    tmp_path: Path, initialize: Initialize
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    grown = make_variable("grown", [5.0, 5.0, 5.0])
    case.take(grown, ("cnn", "x", (PadOrSlice((2,), (3,), (0,)),)))
    values = case.run(initialize=initialize, verify=True)
    np.testing.assert_array_equal(values["grown"], [*numbers(2), 5.0])


def test_only_initializers_that_are_not_overwritten_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("restored", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("head", [1.0]))
    restorer = case.restorer(initialize=Initialize.remaining)
    monkeypatch.setattr(restorer, "restore", lambda session: None)
    with tf1.Session() as session:
        restorer.warm_start(session, None, None, init_fn=None)
        assert list(session.run(tf1.report_uninitialized_variables())) == [b"restored"]


def test_restoring_again_adds_no_operation_and_reads_the_source_again(
    tmp_path: Path, graph: tf.Graph
) -> None:
    bundle, npz = save_bundle(tmp_path, {"x": numbers(2)}), save_npz(tmp_path, {"x": numbers(3)})
    case = Case(cnn=bundle, lstm=npz)
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(3)), ("lstm", "x"))
    restorer = case.restorer(verify=True)
    graph.finalize()
    for _ in range(2):
        with tf1.Session() as session:
            restorer.warm_start(session, None, None, init_fn=None)
            restorer.restore(session)
            np.testing.assert_array_equal(session.run(case.variables["a"]), numbers(2))


def test_a_plan_with_problems_is_not_carried_out(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    with pytest.raises(PlanError, match="something is wrong"):
        Restorer(case.plan(Problem("something is wrong")), {}, case.open)


def test_a_source_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer()
    Path(f"{case.paths['cnn']}.index").write_bytes(b"")
    with tf1.Session() as session, pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*model"):
        restorer.restore(session)


@pytest.mark.parametrize("form", SAVE)
def test_a_flipped_byte_is_an_error_that_names_scaffold_path_and_tensor(
    tmp_path: Path, form: str
) -> None:
    values = {"good": numbers(50), "bad": numbers(50, seed=1)}
    case = Case(cnn=SAVE[form](tmp_path, values))
    case.take(make_variable("a", np.zeros(50)), ("cnn", "good"))
    case.take(make_variable("b", np.zeros(50)), ("cnn", "bad"))
    restorer = case.restorer()
    for file in tmp_path.iterdir():
        content = bytearray(file.read_bytes())
        at = content.find(values["bad"].tobytes())
        content[at + 3] ^= at >= 0
        file.write_bytes(content)
    with (
        tf1.Session() as session,
        pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*(model|weights)") as caught,
    ):
        restorer.warm_start(session, None, None, init_fn=None)
    assert "bad" in str(caught.value)
    assert "good" not in str(caught.value)


def test_a_value_that_cannot_be_converted_names_variable_and_tensor(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros((3, 2))), ("cnn", "x", (Transpose((1, 0)),)))
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: a cannot be made from x"):
        case.run()


@pytest.mark.parametrize("form", SAVE)
def test_nan_in_a_source_is_a_warning_or_an_error(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = np.array([1, np.nan, np.inf], np.float32)
    case = Case(cnn=SAVE[form](tmp_path, {"x": value, "good": value[:1]}))
    case.take(make_variable("a", np.zeros(3)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(1)), ("cnn", "good"))
    with caplog.at_level(logging.WARNING):
        values = case.run(verify=True)
    assert "scaffolds.cnn: x in" in caplog.text
    assert "holds NaN or infinite values" in caplog.text
    assert "good in" not in caplog.text
    np.testing.assert_array_equal(values["a"], value)
    case.finite = frozenset({"cnn"})
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: x in .* holds NaN or infinite"):
        case.run()


@pytest.mark.parametrize("form", SAVE)
def test_verification_names_all_variables_that_do_not_hold_their_source(
    tmp_path: Path, form: str
) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {each: numbers(2) for each in "xyz"}))
    for name, tensor in zip("abc", "xyz", strict=True):
        case.take(make_variable(name, np.zeros(2)), ("cnn", tensor))
    change = [case.variables[name].assign([0.0, 1.0]).op for name in "bc"]
    restorer = case.restorer(verify=True)

    class Interfering(tf.compat.v1.Session):
        """Assigns before variables are read back, as another thread would."""

        def run(self, fetches: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(fetches, list) and any(isinstance(part, tf.Variable) for part in fetches):
                super().run(change)
            return super().run(fetches, *args, **kwargs)

    with (
        Interfering() as session,
        pytest.raises(CheckpointError, match=r"b does not hold what was .* y of cnn") as caught,
    ):
        restorer.warm_start(session, None, None, init_fn=None)
    assert [problem.state.split()[0] for problem in caught.value.problems] == ["b", "c"]


@pytest.mark.parametrize("form", SAVE)
def test_strings_are_restored(tmp_path: Path, form: str) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {"s": np.array("text")}))
    case.take(tf1.get_variable("s", [], tf.string, tf1.zeros_initializer()), ("cnn", "s"))
    assert case.run(verify=True) == {"s": b"text"}


@pytest.mark.parametrize(
    "raised",
    [tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.ResourceExhaustedError],
)
def test_an_error_of_the_session_stays_what_it_is(
    tmp_path: Path, raised: type[tf.errors.OpError]
) -> None:
    """A monitored session recovers from the first two."""
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer()

    class Lost(tf.compat.v1.Session):
        def run(self, *_: Any, **__: Any) -> Any:
            raise raised(None, None, "lost")

    server = tf1.train.Server.create_local_server()
    with Lost(server.target) as session, pytest.raises(raised, match="lost"):
        restorer.restore(session)


VALUES: list[Any] = [
    np.float32(1),
    np.zeros((2, 3), np.float32),
    np.zeros((3, 2), np.float32),
    np.zeros((2, 3), np.int32),
    np.zeros((0, 3), np.float32),
    np.array([-0.0, 0.0], np.float32),
    np.array([0.0, 0.0], np.float32),
    np.array([True]),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.array([b"ab", b"c"], object),
    np.array([b"a", b"bc"], object),
]


def test_every_difference_changes_the_hash() -> None:
    assert len({value_hash(np.asarray(value)) for value in VALUES}) == len(VALUES)


def test_equal_values_have_one_hash_whatever_their_layout_in_memory() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert value_hash(np.asfortranarray(value)) == value_hash(value)
    assert value_hash(np.array(["ab"], object)) == value_hash(np.array([b"ab"], object))
    nan = np.array([np.nan], np.float32)
    assert value_hash(nan.copy()) == value_hash(nan)


def made_of(name: str, value: Any, **kwargs: Any) -> tf.Variable:
    return tf1.get_variable(name, initializer=value, **kwargs)


def independent() -> None:
    made_of("a", 1.0)
    made_of("b", 1.0)


def read() -> None:
    made_of("b", tf.square(made_of("a", 1.0) + 1.0))


def read_on_condition() -> None:
    a = made_of("a", 1.0)
    value = tf.cond(tf1.is_variable_initialized(a), a.read_value, lambda: a.initial_value)
    made_of("b", value)


def read_in_turn() -> None:
    b = made_of("b", made_of("a", 1.0) + 1.0)
    made_of("c", b + 1.0)


def read_in_a_function() -> None:
    # Not in GLOBAL_VARIABLES, because TensorFlow's guard of initial values fails for functions.
    a = made_of("a", 1.0, collections=["all"], use_resource=True)
    made_of("b", tf.function(lambda: a + 1.0)(), collections=["all"])


def run_before() -> None:
    a = made_of("a", 1.0)
    made_of("z", 1.0)
    with tf.control_dependencies([a.initializer]):
        value = tf.constant(1.0) + 1.0
    made_of("b", value)


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize(
    ("build", "overwritten", "expected"),
    [
        (independent, "", "ab"),
        (independent, "a", "b"),
        (independent, "ab", ""),
        (read, "a", "ab"),
        (read, "ab", "a"),
        (read_on_condition, "a", "ab"),
        (read_in_turn, "ab", "abc"),
        (read_in_a_function, "a", "ab"),
        (run_before, "az", "ab"),
    ],
)
def test_initializers_that_must_run(
    build: Callable[[], None], overwritten: str, expected: str, use_resource: bool
) -> None:
    tf1.get_variable_scope().set_use_resource(use_resource)
    build()
    variables = tf1.get_collection("all") or tf1.global_variables()
    initializers = [tf.group(*(variable.initializer for variable in variables))]
    left = necessary(initializers, overwritten)
    assert [op.inputs[0].op.name for op in left] == list(expected)


def test_a_variable_that_another_operation_reads_is_initialised() -> None:
    a, b = made_of("a", 1.0), made_of("b", 1.0)
    printed = tf.group(tf.print(a))
    assert necessary([a.initializer, b.initializer], ["a", "b"], [printed]) == [a.initializer]


@pytest.mark.parametrize(
    ("value", "is_pure"),
    [
        (lambda: tf.random.uniform([2], seed=1) * 2.0, True),
        (lambda: tf.random.truncated_normal([2]), True),
        (lambda: tf.random.stateless_normal([2], [1, 2]), True),
        (lambda: tf.numpy_function(np.zeros, [[2]], tf.float64), False),
        (lambda: tf.ensure_shape(tf1.Print(1.0, [1.0]), []), False),
    ],
)
def test_an_initial_value_that_is_overwritten_is_computed_for_its_effects_alone(
    value: Callable[[], tf.Tensor], is_pure: bool
) -> None:
    op = tf1.get_variable("a", initializer=value, shape=None, validate_shape=False).initializer
    assert necessary([op], "a") == ([] if is_pure else [op])
    assert not necessary([op], "a", effects=False)
