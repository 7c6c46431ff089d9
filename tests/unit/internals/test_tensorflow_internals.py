"""TensorFlow still has what is private and used: where these fail, look there first."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from runner.internals.datasets import reads_generator, surely_ends
from runner.internals.tensorflow import (
    TrackableObjectGraph,
    build_all_signature_defs,
    function_nodes,
    gradient_registry,
    gradients_end_with_graphs,
    is_of_tensor,
    prepare_step,
    restored_seed,
    run_once,
    session_config,
    slice_of,
)

SIGNATURES: list[tuple[Any, list[str]]] = [
    (
        build_all_signature_defs,
        [
            "receiver_tensors",
            "export_outputs",
            "receiver_tensors_alternatives",
            "serving_only",
        ],
    ),
    (tf.Session._make_callable_from_options, ["self", "callable_options"]),
    (tf.Session._do_call, ["self", "fn", "args"]),
    # Without it no local init of a scaffold would run, and a Supervisor would restore nothing.
    (tf.train.SessionManager._try_run_local_init_op, ["self", "sess"]),
    (tf.train.Supervisor._init_session_manager, ["self", "session_manager"]),
    (
        tf.train.SingularMonitoredSession.__base__.__init__,
        ["self", "session_creator", "hooks", "should_recover", "stop_grace_period_secs"],
    ),
]


@pytest.mark.parametrize(("function", "parameters"), SIGNATURES)
def test_private_methods_take_what_they_took(function: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_the_configuration_of_a_session() -> None:
    config = tf.ConfigProto(inter_op_parallelism_threads=3)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        assert session_config(session) == config


@pytest.mark.parametrize("inline", [False, True])
def test_a_prepared_step_gives_values_and_the_errors_of_session_run(inline: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.placeholder(tf.float32, [])
        checked = tf.debugging.check_numerics(value * 2.0, "not finite", name="checked")
        step = prepare_step(session, [value], [checked], [checked.op], inline=inline)
        assert step(np.float32(2.0)) == [4.0]
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            step(np.float32("nan"))
        assert raised.value.op.name == "checked"


def test_operations_run_once_with_feeds_and_the_errors_of_session_run() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.placeholder(tf.float32, [])
        variable = tf.get_variable("v", initializer=tf.debugging.check_numerics(value, "", "one"))
        for fed in (np.array(2.0, np.float32), np.array(4.0), 3.0):
            run_once(session, [variable.initializer, variable.initializer], {value: fed})
            assert session.run(variable) == fed
        run_once(session, [])
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            run_once(session, [variable.initializer], {value: np.array(np.nan, np.float32)})
        assert raised.value.op.name == "one"


def test_nothing_is_left_of_operations_that_run_once() -> None:
    gc.collect()  # Callables of other tests.
    released: list[Any] = []
    release = tf.Session._Callable.__del__
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default(), tf.Session() as session:
        patch.setattr(tf.Session._Callable, "__del__", lambda c: released.append(release(c)))
        run_once(session, [tf.no_op()])
        assert len(released) == 1


def test_the_nodes_of_a_function_are_found_by_its_name() -> None:
    with tf.Graph().as_default() as graph:
        called = tf.function(lambda: tf.random_uniform([], name="draw"))()
        (name,) = (
            value.func.name for value in called.op.node_def.attr.values() if value.HasField("func")
        )
    assert "RandomUniform" in {node.op for node in function_nodes(graph, name)}
    assert list(function_nodes(graph, "absent")) == []


def test_a_part_of_a_variable_knows_the_whole() -> None:
    with tf.Graph().as_default():
        partitioner = tf.fixed_size_partitioner(2)
        parts = tf.get_variable("v", [4, 3], partitioner=partitioner)
        whole = tf.get_variable("w", [4, 3])
        slices = [slice_of(part) for part in parts]
    assert [(part.full_name, list(part.full_shape)) for part in slices] == [("v", [4, 3])] * 2
    assert [list(part.var_offset) for part in slices] == [[0, 0], [2, 0]]
    assert slice_of(whole) is None


def test_a_tensor_of_a_checkpoint_is_told_from_a_view(tmp_path: Path) -> None:
    path = tf2.train.Checkpoint(v=tf2.Variable([1.0, 2.0])).save(str(tmp_path / "ckpt"))
    reader = tf2.train.load_checkpoint(path)
    value = reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")
    assert is_of_tensor(value)
    assert not np.shares_memory(value, reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE"))
    assert not is_of_tensor(value[:1])
    assert not is_of_tensor(np.zeros(2))


def test_a_checkpoint_by_object_describes_its_objects(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(v=tf.Variable(1.0, use_resource=True)).write(str(tmp_path / "c"))
    reader = tf.train.load_checkpoint(str(prefix))
    graph = TrackableObjectGraph.FromString(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    assert [child.local_name for child in graph.nodes[0].children] == ["v"]


def test_the_eager_seed_comes_back_where_it_was() -> None:
    tf2.random.set_seed(3)
    expected = tf.random.normal([2]).numpy(), tf.random.normal([2]).numpy()
    tf2.random.set_seed(3)
    values = [tf.random.normal([2]).numpy()]
    with restored_seed():
        tf2.random.set_seed(4)
        tf.random.normal([5])
    values.append(tf.random.normal([2]).numpy())
    assert np.array_equal(values, expected)


def test_the_gradient_of_a_function_lasts_as_long_as_its_graph() -> None:
    value = tf2.Variable(1.0)
    compute = tf2.function(lambda: tf2.nn.silu(value))  # Has a gradient of its own.
    before = {*gradient_registry.list()}
    with gradients_end_with_graphs(), gradients_end_with_graphs():
        graph = weakref.ref(compute.get_concrete_function().graph)
    gc.collect()
    with tf2.GradientTape() as tape:
        result = compute()
    assert float(tape.gradient(result, value)) == pytest.approx(0.927671)
    assert {*gradient_registry.list()} > before
    del compute, tape, result
    gc.collect()
    assert graph() is None
    assert {*gradient_registry.list()} == before


def _numbers(count: int = 3) -> tf2.data.Dataset:
    return tf2.data.Dataset.range(count)


def _generated(*_: Any) -> tf2.data.Dataset:
    return tf2.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([]))


def _of_captured() -> tf2.data.Dataset:
    captured = _numbers().repeat()
    return _numbers().flat_map(lambda _: captured)


# A dataset, whether it surely ends, and whether a generator makes it.
DATASETS: dict[str, tuple[Callable[[], tf2.data.Dataset], bool, bool]] = {
    "of a known length": (_numbers, True, False),
    "of an unknown length": (lambda: _numbers().filter(lambda x: x > 0), True, False),
    "without end": (lambda: _numbers().repeat(), False, False),
    "the first of some without end": (
        lambda: _numbers().repeat().take(5).filter(lambda x: x > 0),
        True,
        False,
    ),
    "of a generator": (_generated, False, True),
    "of ends in a function": (lambda: _numbers().flat_map(_numbers), True, False),
    "without end in a function": (
        lambda: _numbers().flat_map(lambda x: _numbers().repeat()),
        False,
        False,
    ),
    "without end in a function of a function": (
        lambda: _numbers().flat_map(lambda x: _numbers().flat_map(lambda y: _numbers().repeat())),
        False,
        False,
    ),
    "of a generator in a function": (lambda: _numbers().flat_map(_generated), False, True),
    "that a function captures": (_of_captured, False, False),
}


@pytest.mark.parametrize("name", DATASETS)
def test_whether_a_dataset_ends(name: str) -> None:
    make, *expected = DATASETS[name]
    dataset = make()
    assert [surely_ends(dataset), reads_generator(dataset)] == expected
