"""Trains a Keras program by `fit` and by the graph of a run, and compares all that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.config.schema import RunConfig, TrainConfig
from runner.graph.build import build_graph
from runner.internals.tensorflow import eager_mode
from tests.support.configs import tiny

SEED, EPOCHS, LENGTH, BATCH, EXAMPLES = 3, 2, 3, 16, 48


@dataclass(frozen=True)
class Program:
    """A Keras program.

    Attributes:
      model: builds and compiles the model.
      data: returns batches that end.
      fit: arguments of `fit` besides.
      config: fields of the run's configuration besides.
      plain: builds the model of the run, where the configuration says how it is compiled; by
        default it is `model`.
      policy: the dtype policy.
      tolerance: of numbers; 0 wants equal bytes.
    """

    model: Callable[[], keras.Model]
    data: Callable[[], tf.data.Dataset]
    fit: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    plain: Callable[[], keras.Model] | None = None
    policy: str = "float32"
    tolerance: float = 0.0


@dataclass
class Outcome:
    """What a training computes.

    Attributes:
      logs: the loss and the metrics after each step.
      state: the values of the model, its metrics and its optimizer, by their paths.
      evaluated: the loss and the metrics of an evaluation afterwards.
    """

    logs: list[Mapping[str, float]]
    state: list[tuple[str, NDArray[Any]]]
    evaluated: Mapping[str, float]


class Data:
    """The data of a program in a run."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def train(self) -> tf.data.Dataset:
        return self._program.data()

    def validation(self) -> tf.data.Dataset:
        return self._program.data()

    def test(self) -> tf.data.Dataset:
        return self._program.data()


# What the configuration of the run that is being built refers to.
_current: dict[str, Program] = {}


def current_data() -> Data:
    return Data(_current["program"])


def current_model(dtype_policy: str = "") -> keras.Model:
    program = _current["program"]
    return (program.plain or program.model)()


def config(program: Program) -> RunConfig:
    """Returns the configuration of the program's run, which the next graph is built from."""
    _current["program"] = program
    model = {"_target_": f"{__name__}.current_model", "dtype_policy": program.policy}
    fields: dict[str, Any] = {
        "seed": SEED,
        "data": {"_target_": f"{__name__}.current_data"},
        "model": model,
        "loss": None,
        "metrics": {},
        "optimizer": {},
        "train": TrainConfig(epochs=EPOCHS, steps_per_epoch=LENGTH),
    }
    changes = {**program.config}
    changes["model"] = model | dict(changes.get("model", {}))
    return tiny(**{**fields, **changes})


@contextmanager
def _policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _state(model: keras.Model) -> list[tuple[str, NDArray[Any]]]:
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    return [(variable.path, np.asarray(variable.value.numpy())) for variable in variables]


def by_fit(program: Program) -> Outcome:
    """Trains and evaluates by Keras."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)
    with _policy(program.policy):
        batches = program.data()
        model = program.model()
        logs: list[Mapping[str, float]] = []
        state: list[tuple[str, NDArray[Any]]] = []

        class Log(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs_: Any = None, **named: Any) -> None:
                values = logs_ or named["logs"]
                logs.append({name: float(value) for name, value in values.items()})
                # At its end, `fit` would put averages in the place of the weights.
                state[:] = _state(model)

        arguments = {"epochs": EPOCHS, "steps_per_epoch": LENGTH, "shuffle": False, "verbose": 0}
        model.fit(batches.repeat(), callbacks=[Log()], **{**arguments, **program.fit})
        for variable, (_, value) in zip(model.variables, state, strict=False):
            variable.assign(value)
        evaluated = model.evaluate(program.data(), return_dict=True, verbose=0)
    return Outcome(logs, state, evaluated)


def by_run(program: Program) -> Outcome:
    """Trains and evaluates by the graph of a run."""
    built = build_graph(config(program), "validation", train=True)
    training, values = built.training, built.model
    assert training is not None
    assert values is not None
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([tf.compat.v1.local_variables_initializer(), tf.compat.v1.tables_initializer()])
        session.run(training.input_initializer)
        fetches = (dict(training.values), training.train_op)
        logs = [session.run(fetches)[0] for _ in range(EPOCHS * LENGTH)]
        with eager_mode():
            values.pull(session, weights=True)
            state = _state(values.model)
        evaluated = built.evaluation.evaluate(session)
    return Outcome(logs, state, evaluated)


def assert_equal(one: Outcome, other: Outcome, tolerance: float = 0.0) -> None:
    """Fails where two trainings differ, with what differs."""
    for step, (logged, expected) in enumerate(zip(one.logs, other.logs, strict=True)):
        assert set(logged) == set(expected)
        for name in expected:
            _assert_close(f"{name} of step {step}", logged[name], expected[name], tolerance)
    # Some paths hold counters of the process.
    for (path, value), (_, truth) in zip(one.state, other.state, strict=True):
        _assert_close(path, value, truth, tolerance)
    assert set(one.evaluated) == set(other.evaluated)
    for name, number in other.evaluated.items():
        # Sessions choose the order of a metric's sums.
        _assert_close(f"evaluated {name}", one.evaluated[name], number, tolerance or 1e-6)


def assert_as_in_fit(program: Program) -> None:
    """Fails where a run of a program computes anything else than `fit`."""
    assert_equal(by_run(program), by_fit(program), program.tolerance)


def _assert_close(name: str, value: Any, expected: Any, tolerance: float) -> None:
    value, expected = np.asarray(value), np.asarray(expected)
    if tolerance and expected.dtype.kind == "f":
        np.testing.assert_allclose(value, expected, tolerance, tolerance / 10, err_msg=name)
    else:
        np.testing.assert_array_equal(value, expected, err_msg=name)
