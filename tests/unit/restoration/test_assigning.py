from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from runner.restoration.assigning import Assigner, on_processor, only_device

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def never_computed(shape: list[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(False, ["the initializer ran"])]):
        return tf.identity(tf.zeros(shape, dtype))


@pytest.mark.parametrize("use_resource", [True, False])
def test_assigning_adds_no_operation_and_runs_no_initializer(
    graph: tf.Graph, use_resource: bool
) -> None:
    initial = never_computed([2])
    variable = tf1.get_variable("v", initializer=initial, use_resource=use_resource)
    assigner = Assigner([variable])
    assigner.build()
    graph.finalize()
    with tf1.Session() as session:
        assignments = assigner.bind(session)
        assert assignments.singly(variable) == use_resource
        assignments.assign([(variable, np.array([3, 4], np.float32))])
        np.testing.assert_array_equal(session.run(variable), [3, 4])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (tf.float32, [1.5]),
        (tf.bfloat16, [1.5, 2.0]),
        (tf.int64, 7),
        (tf.bool, [[True], [False]]),
        (tf.complex64, [1j]),
        (tf.string, [b"a\0b\0", b""]),
    ],
)
def test_every_dtype_and_rank_is_assigned(dtype: tf.DType, value: object) -> None:
    array = np.array(value, dtype.as_numpy_dtype)
    variable = tf1.get_variable("v", array.shape, dtype, tf1.zeros_initializer(), use_resource=True)
    other = tf1.get_variable("w", array.shape, dtype, tf1.zeros_initializer(), use_resource=True)
    assigner = Assigner([variable, other])
    assigner.build()
    with tf1.Session() as session:
        session.run(other.initializer)
        before = session.run(other)
        assigner.bind(session).assign([(variable, array)])
        np.testing.assert_array_equal(session.run(variable), array)
        np.testing.assert_array_equal(session.run(other), before)


def test_the_number_of_operations_depends_on_dtypes_only(graph: tf.Graph) -> None:
    added = []
    for count in (2, 40):
        variables = [
            tf1.get_variable(f"v{count}_{each}", initializer=1.0, use_resource=True)
            for each in range(count)
        ]
        before = len(graph.get_operations())
        assigner = Assigner(variables)
        assigner.build()
        assigner.build()
        added.append(len(graph.get_operations()) - before)
    assert added == [4, 4]


def test_a_variable_in_a_container_and_one_of_another_name_are_found() -> None:
    with tf1.container("other"):
        contained = tf1.get_variable("a", initializer=1.0, use_resource=True)
    with tf1.name_scope("scope"):
        named = tf.Variable(1.0, name="a", trainable=False)
    variables = [contained, named]
    assigner = Assigner(variables)
    assigner.build()
    with tf1.Session() as session:
        assigner.bind(session).assign(
            [(v, np.array(n, np.float32)) for n, v in enumerate(variables)]
        )
        assert session.run(variables) == [0.0, 1.0]


def test_a_variable_goes_its_own_way_afterwards() -> None:
    variables = [tf1.get_variable(each, [2], use_resource=True) for each in "ab"]
    added = [each.assign_add([1.0, 1.0]) for each in variables[:1]]
    assigner = Assigner(variables)
    assigner.build()
    given = [np.ones(2, np.float32), np.ones(2, np.float32)]
    with tf1.Session() as session:
        assigner.bind(session).assign(list(zip(variables, given, strict=True)))
        session.run(added)
        np.testing.assert_array_equal(session.run(variables), [[2, 2], [1, 1]])


def test_with_several_devices_the_initializers_are_fed() -> None:
    with tf.device("/device:CPU:1"):
        variable = tf1.get_variable("v", initializer=never_computed([2]), use_resource=True)
    assigner = Assigner([variable])
    assigner.build()
    with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
        assert only_device(session) is None
        assignments = assigner.bind(session)
        assert not assignments.singly(variable)
        assignments.assign([(variable, np.array([3, 4], np.float32))])
        np.testing.assert_array_equal(session.run(variable), [3, 4])


def test_in_a_remote_session_the_initializers_are_fed() -> None:
    variable = tf1.get_variable("v", initializer=never_computed([2]), use_resource=True)
    assigner = Assigner([variable])
    assigner.build()
    server = tf1.train.Server.create_local_server()
    with tf1.Session(server.target) as session:
        assert only_device(session) is None
        assigner.bind(session).assign([(variable, np.array([3, 4], np.float32))])
        np.testing.assert_array_equal(session.run(variable), [3, 4])


@pytest.mark.parametrize(
    ("device", "use_resource", "expected"),
    [
        ("", True, True),
        ("/device:CPU:0", True, True),
        ("/job:localhost/device:CPU:0", True, True),
        ("", False, False),
        ("/device:GPU:0", True, False),
        ("/job:ps/task:0", True, False),
    ],
)
def test_variables_of_other_devices_and_processes_are_known_from_the_graph(
    device: str, use_resource: bool, expected: bool
) -> None:
    with tf.device(device):
        variable = tf1.get_variable("v", [2], use_resource=use_resource)
    assert on_processor(variable) == expected


def test_bind_needs_build() -> None:
    with tf1.Session() as session, pytest.raises(RuntimeError, match="build must be called before"):
        Assigner([]).bind(session)
