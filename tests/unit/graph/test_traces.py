"""What steps capture, in a session: constants, tables, generators, variables, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.errors import ConfigError, UserCodeError
from runner.graph.captured import made_before_restoring
from runner.graph.traces import SessionCopy, Trace, operation_name
from tests.samples.graphs import build, opened
from tests.support.configs import tiny

VECTOR = tf.TensorSpec([None], tf.float32)
WORDS = tf.TensorSpec([None], tf.string)


class Layer(keras.layers.Layer):
    """A layer that holds things by name."""

    def __init__(self, name: str = "holder", **held: Any) -> None:
        super().__init__(name=name)
        for attribute, value in held.items():
            setattr(self, attribute, value)


def in_session(
    function: Callable[[Any], Any], batch: Any, *layers: Any, spec: Any = VECTOR, times: int = 1,
    **named: tf.Variable,
) -> list[Any]:  # fmt: skip
    """Returns what a session computes by the trace of a function, called again and again."""
    trace = Trace(function, spec)
    copy = SessionCopy(named, layers)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        imported = copy.add(trace, tf.constant(batch), name="step")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.tables_initializer())
        return [session.run(imported.outputs) for _ in range(times)]


@pytest.mark.parametrize(
    "constant",
    [
        np.float32(0.1),
        np.asarray([1.0, 2.0, 3.0], np.float32),
        np.asarray([True, False, True]),
        np.asarray([2, 3, 5], np.int64),
    ],
)
def test_a_captured_constant_has_the_same_value(constant: Any) -> None:
    held, batch = tf.constant(constant), [1.0, 2.0, 3.0]

    def step(values: Any) -> Any:
        return tf.cast(held, tf.float32) * values

    (result,) = in_session(step, batch)
    np.testing.assert_array_equal(result, step(tf.constant(batch)))


def static(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    table = tf.lookup.StaticHashTable(pairs, -1)
    return table, table.lookup


def of_file(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    file = folder / "words.txt"
    file.write_text("a\nb\n")
    whole = tf.lookup.TextFileIndex
    pairs = tf.lookup.TextFileInitializer(
        str(file), tf.string, whole.WHOLE_LINE, tf.int64, whole.LINE_NUMBER
    )
    table = tf.lookup.StaticHashTable(pairs, -1)
    return table, table.lookup


def mutable(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a", "b"], tf.constant([3, 4], tf.int64))
    return table, table.lookup


def of_vocabulary(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    pairs = tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.constant([0, 1], tf.int64)
    )
    table = tf.lookup.StaticVocabularyTable(pairs, 2)
    return table, table.lookup


def of_layer(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    layer = keras.layers.StringLookup(vocabulary=["a", "b"])
    return layer.lookup_table, layer


@pytest.mark.parametrize("make", [static, of_file, mutable, of_vocabulary, of_layer])
@pytest.mark.parametrize("place", ["attribute", "list", "dict"])
def test_a_captured_table_has_the_same_entries(
    make: Callable[[Path], Any], place: str, tmp_path: Path
) -> None:
    table, lookup = make(tmp_path)
    places = {"attribute": table, "list": [table], "dict": {"words": table}}
    words = ["a", "b", "other"]
    (result,) = in_session(lookup, words, Layer(held=places[place]), spec=WORDS)
    np.testing.assert_array_equal(result, lookup(tf.constant(words)))


def test_a_mutable_table_changes_in_the_session_alone() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def count(words: Any) -> Any:
        table.insert(words, table.lookup(words) + 1)
        return table.lookup(words)

    results = in_session(count, ["a"], Layer(table=table), spec=WORDS, times=3)
    assert [result.tolist() for result in results] == [[1], [2], [3]]
    assert int(table.size()) == 0


class Derived(keras.layers.Layer):
    """Computes a tensor from a variable when it is built, and has one that is a constant."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.doubled = keras.ops.convert_to_tensor(self.scale) * 2.0

    def call(self, inputs: Any) -> Any:
        return inputs * self.doubled + self.scale


def test_a_tensor_from_before_a_layer_is_restored_is_named() -> None:
    layer = Derived(name="derived")
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    trace = Trace(model.call, tf.TensorSpec([None, 3]))
    captured = {id(tensor) for tensor, _ in trace.captured}
    (line,) = made_before_restoring(model.layers, captured, {id(layer.scale.value)})
    assert line.startswith("derived.doubled: a tensor from before derived is restored")
    assert [*made_before_restoring(model.layers, captured, {id(model.weights[1].value)})] == []


def test_a_generator_draws_what_it_draws_eagerly() -> None:
    generator = tf.random.Generator.from_seed(3)
    state = np.asarray(generator.state)

    def draw(values: Any) -> Any:
        return values + generator.normal([2])

    drawn = in_session(draw, [0.0, 0.0], times=3, generator=generator.state)
    np.testing.assert_array_equal(generator.state, state)
    for result in drawn:
        np.testing.assert_array_equal(result, draw(tf.constant([0.0, 0.0])))


def test_a_variable_whose_handle_alone_is_used_is_one_of_the_session() -> None:
    variable = tf.Variable([1.0, 2.0], name="slot")

    def step(values: Any) -> Any:
        tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=values)
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)

    results = in_session(step, [1.0, 1.0], times=2, slot=variable)
    assert [result.tolist() for result in results] == [[2.0, 3.0], [3.0, 4.0]]
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_outputs_may_be_nested_and_lack_some() -> None:
    def step(values: Any) -> Any:
        return {"sum": tf.reduce_sum(values), "none": None, "parts": [values, (None, values * 2)]}

    trace = Trace(step, VECTOR)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = SessionCopy({}).add(trace, tf.constant([1.0, 2.0]), name="step").outputs
        assert outputs["none"] is None
        assert outputs["parts"][1][0] is None
        assert session.run(outputs["parts"][1][1]).tolist() == [2.0, 4.0]
        assert session.run(outputs["sum"]) == 3.0


@pytest.mark.parametrize(
    "name", ["a layer/kernel", "köpf/bias", "_hidden/w", "a:b(c)/w", "-x/kernel", "1/w"]
)
def test_a_variable_has_any_name(name: str) -> None:
    variable = tf.Variable(2.0)
    (result,) = in_session(lambda values: values * variable, [3.0], **{name: variable})
    assert result.tolist() == [6.0]
    with tf.Graph().as_default():
        assert tf.no_op(operation_name(name).replace("/", ".")) is not None


def iterator() -> tuple[Any, Callable[[Any], Any]]:
    numbers = iter(tf.data.Dataset.range(9))
    return numbers, lambda values: values + tf.cast(next(numbers), tf.float32)


def dense() -> tuple[Any, Callable[[Any], Any]]:
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, -1.0, empty_key=-1, deleted_key=-2
    )
    return table, lambda values: table.lookup(tf.cast(values, tf.int64))


@pytest.mark.parametrize(("make", "kind"), [(iterator, "OwnedIterator"), (dense, "DenseHashTable")])
@pytest.mark.parametrize("held", [True, False])
def test_what_no_session_can_hold_is_refused_with_its_layer_and_the_remedy(
    make: Callable[[], Any], kind: str, held: bool
) -> None:
    value, step = make()
    with pytest.raises(ConfigError) as caught:
        in_session(step, [1.0], *([Layer("words in", source=value)] if held else []))
    (problem,) = caught.value.problems
    holder = f"words in.source, of type {kind}" if held else "that no layer holds"
    assert holder in problem.state
    assert "made outside of the step" in problem.cause
    assert "tf.lookup.StaticHashTable or MutableHashTable" in problem.remedy


class Fails(keras.Model):
    """A model whose operations fail for some features."""

    def __init__(self, way: str) -> None:
        super().__init__(name="fails")
        self.way, self.head = way, keras.layers.Dense(2)

    def call(self, features: Any, training: bool = False) -> Any:
        outputs = self.head(features)
        if self.way == "operation":
            outputs = outputs + 0.0 * tf.gather(features[0], 99)  # fails here
        if self.way == "function":
            outputs = outputs + _gathered(features)
        if self.way == "python":
            nothing = tf.numpy_function(_raises, [features], tf.float32)
            outputs = outputs + tf.ensure_shape(nothing, [])
        return outputs


@tf.function
def _gathered(features: Any) -> Any:
    return 0.0 * tf.gather(features[0], 98)  # fails in a function


def _raises(values: Any) -> Any:
    raise ValueError("no such word")  # fails in Python


@pytest.mark.parametrize(
    ("way", "line"),
    [
        ("operation", "# fails here"),
        ("function", "# fails in a function"),
        ("python", "# fails in Python"),
    ],
)
@pytest.mark.parametrize("step", ["training", "evaluation"])
def test_an_error_of_a_step_names_the_users_line(way: str, line: str, step: str) -> None:
    built = build(tiny(model={"_target_": f"{__name__}.Fails", "way": way}))
    with (
        pytest.raises(UserCodeError) as caught,
        opened(built) as run,
        run.built.explaining(),
    ):
        run.train() if step == "training" else run.evaluate()
    assert caught.value.problems[0].state.startswith("model raised ")
    assert line in caught.value.details
    assert "tests/unit/graph/test_traces.py" in caught.value.details
