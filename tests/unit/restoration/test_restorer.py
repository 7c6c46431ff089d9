from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import Initialize
from runner.restoration.conversions import PadOrSlice, Slice, Transpose
from runner.restoration.variables import Partition
from tests.tiny.restoring import SAVE, Case, make_variable, numbers, save_bundle, save_npz

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


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
    np.testing.assert_array_equal(values["a"], cnn["x"])
    np.testing.assert_array_equal(values["b"], lstm["x"])
    np.testing.assert_array_equal(values["c"], lstm["y"])
    np.testing.assert_array_equal(values["head"], [7.0])


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
    init = restorer.build()
    with tf1.Session() as session:
        session.run(init)
        restorer.restore(session)
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
def test_conversions_and_means_are_applied(tmp_path: Path, form: str) -> None:
    first, second = {"x": numbers(2, 3)}, {"x": numbers(2, 3, seed=1)}
    case = Case(a=SAVE[form](tmp_path / "a", first), b=SAVE[form](tmp_path / "b", second))
    case.take(make_variable("t", np.zeros((3, 2))), ("a", "x", (Transpose((1, 0)),)))
    case.take(make_variable("mean", np.zeros((2, 3))), ("a", "x"), ("b", "x"))
    values = case.run(verify=True)
    np.testing.assert_array_equal(values["t"], first["x"].T)
    np.testing.assert_allclose(values["mean"], (first["x"] + second["x"]) / 2, rtol=1e-6)


@pytest.mark.parametrize("initialize", list(Initialize))
def test_a_part_that_no_source_gives_keeps_its_initial_value(
    tmp_path: Path, initialize: Initialize
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    grown = make_variable("grown", [5.0, 5.0, 5.0])
    case.take(grown, ("cnn", "x", (PadOrSlice((2,), (3,), (0,)),)))
    values = case.run(initialize=initialize, verify=True)
    np.testing.assert_array_equal(values["grown"], [*numbers(2), 5.0])


def test_values_larger_than_a_chunk_and_a_batch_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.restoration.graph_restoration.CHUNK_BYTES", 20)
    monkeypatch.setattr("runner.restoration.streaming.BATCH_BYTES", 20)
    for form, save in SAVE.items():
        values = {f"x{size}": numbers(size, seed=size) for size in (1, 2, 3, 9, 1, 4)}
        case = Case(cnn=save(tmp_path / form, values))
        for name, value in values.items():
            case.take(make_variable(f"{form}_{name}", np.zeros(value.shape)), ("cnn", name))
        for name, value in case.run(verify=True).items():
            np.testing.assert_array_equal(value, values[name.removeprefix(f"{form}_")])


def test_only_initializers_that_are_not_overwritten_run(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("restored", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("head", [1.0]))
    init = case.restorer(initialize=Initialize.remaining).build()
    with tf1.Session() as session:
        session.run(init)
        assert list(session.run(tf1.report_uninitialized_variables())) == [b"restored"]


def test_restoring_again_adds_no_operation_and_reads_the_source_again(
    tmp_path: Path, graph: tf.Graph
) -> None:
    bundle, npz = save_bundle(tmp_path, {"x": numbers(2)}), save_npz(tmp_path, {"x": numbers(3)})
    case = Case(cnn=bundle, lstm=npz)
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(3)), ("lstm", "x"))
    restorer = case.restorer(verify=True)
    init = restorer.build()
    assert restorer.build() is init
    graph.finalize()
    for _ in range(2):
        with tf1.Session() as session:
            session.run(init)
            restorer.restore(session)
            session.run(init)
            restorer.restore(session)
            np.testing.assert_array_equal(session.run(case.variables["a"]), numbers(2))


def test_the_number_of_operations_grows_with_variables_only(
    tmp_path: Path, graph: tf.Graph
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {f"x{each}": numbers(2) for each in range(50)}))
    for each in range(50):
        case.take(make_variable(f"a{each}", np.zeros(2)), ("cnn", f"x{each}"))
    before = len(graph.get_operations())
    case.restorer().build()
    assert len(graph.get_operations()) - before < 10


@pytest.mark.parametrize("initialize", list(Initialize))
@pytest.mark.parametrize("use_resource", [True, False])
def test_initialize_does_what_the_operation_does(
    tmp_path: Path, graph: tf.Graph, use_resource: bool, initialize: Initialize
) -> None:
    tf1.set_random_seed(5)
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("restored", np.zeros(2), use_resource=use_resource), ("cnn", "x"))
    initializers = [tf1.glorot_uniform_initializer(), tf1.zeros_initializer()] * 20
    for number, each in enumerate(initializers):
        case.take(tf1.get_variable(f"v{number}", [3, 2], None, each, use_resource=use_resource))
    if use_resource:  # TensorFlow's own guard of such reads may fail for reference variables.
        with tf.control_dependencies([case.variables["v0"].initializer]):
            value = case.variables["v0"].read_value() + 1.0
        case.take(tf1.get_variable("reads", initializer=value))
    restorer = case.restorer(initialize=initialize)
    operation = restorer.build()
    graph.finalize()
    values = []
    for init in (lambda session: session.run(operation), restorer.initialize):
        with tf1.Session() as session:
            init(session)
            restorer.restore(session)
            values.append(session.run(case.variables))
    np.testing.assert_equal(*values)
    if use_resource:
        np.testing.assert_array_equal(values[1]["reads"], values[1]["v0"] + 1.0)


def test_initialize_runs_nothing_where_everything_is_overwritten(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer(initialize=Initialize.remaining)
    restorer.build()
    uninitialized = tf1.report_uninitialized_variables()
    with tf1.Session() as session:
        restorer.initialize(session)
        assert list(session.run(uninitialized)) == [b"a"]
        restorer.restore(session)
        assert not session.run(uninitialized).size
