"""What a run adds to an optimizer, compared with Keras's and TensorFlow's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

from runner.config.composition import register
from runner.config.schema import ClipConfig, TrainConfig
from runner.config.validation import validate
from runner.errors import ConfigError
from runner.graph.averages import AveragedWeights, averaged_names
from runner.graph.building_optimizers import build_optimizer
from runner.graph.run_optimizer import RunOptimizer, TrainingPolicy, accumulated, clip
from tests.support.configs import tiny

CONF = Path(__file__).resolve().parents[3] / "conf"
TARGET = np.asarray([1.0, -2.0, 3.0], np.float32)
RATE = 0.0625  # Its multiples by powers of 2 are exact.
Make = Callable[[float], keras.optimizers.Optimizer]
KERAS: dict[str, Make] = {
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.5),
    "adam": lambda rate: keras.optimizers.Adam(rate),
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.5),
    "lion": lambda rate: keras.optimizers.Lion(rate, weight_decay=0.5),
}


class Trained:
    """Two variables that move towards a target by an optimizer in a traced step."""

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        train: TrainConfig | None = None,
        policies: Sequence[TrainingPolicy] = (),
        scale: float | None = None,
    ) -> None:
        start = np.full(3, 0.5, np.float32)
        self.variables = [keras.Variable(start, name=name) for name in "ab"]
        self.step = tf.Variable(0, dtype=tf.int64)
        self.run = RunOptimizer(
            optimizer,
            tiny(train=train or TrainConfig()),
            self.step,
            {id(v.value): policy for v, policy in zip(self.variables, policies, strict=False)},
            rate_scale=None if scale is None else tf.Variable(scale),
        )
        optimizer.build(self.variables)

    def taken(self, steps: int) -> list[list[NDArray[Any]]]:
        """Returns the values before the first step and after each."""

        def update() -> None:
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum((v.value - TARGET) ** 2) for v in self.variables)
            self.run.optimizer.apply(tape.gradient(loss, [v.value for v in self.variables]))
            self.step.assign_add(1)

        with self.run.installed():
            function = tf.function(update, autograph=False)
            values = [[variable.numpy() for variable in self.variables]]
            for _ in range(steps):
                function()
                values.append([variable.numpy() for variable in self.variables])
        return values


@pytest.mark.parametrize("name", KERAS)
def test_a_multiplier_is_that_of_an_optimizer_with_the_multiplied_rate(name: str) -> None:
    make = KERAS[name]
    trained = Trained(make(RATE), policies=[TrainingPolicy(), TrainingPolicy(0, 0.5)]).taken(4)
    whole, half = Trained(make(RATE)).taken(4), Trained(make(RATE / 2)).taken(4)
    for step in range(5):
        np.testing.assert_array_equal(trained[step][0], whole[step][0])
        np.testing.assert_array_equal(trained[step][1], half[step][1])


@pytest.mark.parametrize("name", KERAS)
def test_a_rollbacks_scale_is_that_of_an_optimizer_with_the_scaled_rate(name: str) -> None:
    scaled = Trained(KERAS[name](RATE), scale=0.25).taken(3)
    np.testing.assert_array_equal(scaled, Trained(KERAS[name](RATE / 4)).taken(3))


@pytest.mark.parametrize("name", KERAS)
def test_a_frozen_variable_stays_until_its_step_and_then_trains(name: str) -> None:
    optimizer = KERAS[name](RATE)
    values = Trained(optimizer, policies=[TrainingPolicy(3)]).taken(5)
    free = Trained(KERAS[name](RATE)).taken(5)
    for step in range(6):
        np.testing.assert_array_equal(values[step][1], free[step][1])
        assert np.array_equal(values[step][0], values[0][0]) == (step <= 3)


def test_ftrl_divides_by_the_rate_of_a_frozen_variable() -> None:
    with pytest.raises(ConfigError, match="Ftrl"):
        Trained(keras.optimizers.Ftrl(0.1), policies=[TrainingPolicy(3)]).taken(1)


def test_averages_are_those_of_use_ema() -> None:
    ours, theirs = KERAS["adam"](RATE), keras.optimizers.Adam(RATE, use_ema=True, ema_momentum=0.5)
    run = RunOptimizer(ours, tiny(train=TrainConfig(ema_decay=0.5)), tf.Variable(0), {})
    run.set_averages()
    averaged, reference = Trained(ours), Trained(theirs)
    np.testing.assert_array_equal(averaged.taken(3), reference.taken(3))
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    run = RunOptimizer(theirs, tiny(train=TrainConfig(ema_decay=0.25)), tf.Variable(0), {})
    with pytest.raises(ConfigError, match="use_ema"):
        run.set_averages()


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        (ClipConfig(), [3.0, -4.0], [0.0, 12.0]),
        (ClipConfig(value=3.5), [3.0, -3.5], [0.0, 3.5]),
        (ClipConfig(norm=2.5), [1.5, -2.0], [0.0, 2.5]),
        (ClipConfig(global_norm=6.5), [1.5, -2.0], [0.0, 6.0]),
        (ClipConfig(norm=2.5, global_norm=100.0), [1.5, -2.0], [0.0, 2.5]),
    ],
)
def test_gradients_keep_their_bounds(
    bounds: ClipConfig, first: list[float], last: list[float]
) -> None:
    clipped = clip([tf.constant([3.0, -4.0]), None, tf.constant([0.0, 12.0])], bounds)
    assert clipped[1] is None
    np.testing.assert_allclose([clipped[0], clipped[2]], [first, last], rtol=1e-6)


@pytest.mark.parametrize(
    ("bounds", "argument"),
    [("value", "clipvalue"), ("norm", "clipnorm"), ("global_norm", "global_clipnorm")],
)
def test_clipping_is_that_of_keras(bounds: str, argument: str) -> None:
    train = TrainConfig(clip=ClipConfig(**{bounds: 0.5}))
    ours = Trained(keras.optimizers.SGD(RATE), train).taken(3)
    theirs = Trained(keras.optimizers.SGD(RATE, **{argument: 0.5})).taken(3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_several_batches_make_one_update_of_the_mean_of_their_gradients() -> None:
    batches = np.asarray([[1, 0, 0], [2, 0, 0], [6, 3, 0]], np.float32)

    def started() -> tuple[keras.Variable, RunOptimizer]:
        weight = keras.Variable(np.zeros(3, np.float32))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])
        config = tiny(train=TrainConfig(accumulate=3))
        return weight, RunOptimizer(optimizer, config, tf.Variable(0), {})

    weight, run = started()

    def step(batch: tf.Tensor, times: int = 1) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(batch * weight.value)
        gradients = tape.gradient(loss, [weight.value])
        for _ in range(times):
            run.optimizer.apply(gradients, [weight])
        return {"first": batch[0]}

    with run.installed():
        function = tf.function(lambda *b: accumulated(step, b, [run]), autograph=False)
        assert float(function(*map(tf.constant, batches))["first"]) == 6.0
    np.testing.assert_array_equal(weight.numpy(), [-3.0, -1.0, 0.0])
    twice = tf.function(
        lambda *b: accumulated(lambda batch: step(batch, 2), b, [run]), autograph=False
    )
    with run.installed(), pytest.raises(ConfigError, match="updates several times"):
        twice(*map(tf.constant, batches))


def test_the_methods_of_an_optimizer_are_its_own_again() -> None:
    optimizer = KERAS["adamw"](RATE)
    before = [optimizer.apply, optimizer.update_step]
    train = TrainConfig(clip=ClipConfig(norm=1.0), accumulate=2)
    Trained(optimizer, train, policies=[TrainingPolicy(2, 0.5)]).run.optimizer.apply([None] * 0)
    Trained(KERAS["sgd"](RATE), train).run.installed()
    assert [optimizer.apply, optimizer.update_step] == before


TENSORFLOW1 = {
    "GradientDescentOptimizer": {},
    "MomentumOptimizer": {"momentum": 0.9, "use_nesterov": True},
    "AdamOptimizer": {"beta1": 0.8},
    "RMSPropOptimizer": {"momentum": 0.5},
    "AdagradOptimizer": {},
    "FtrlOptimizer": {},
}


@pytest.mark.parametrize("name", TENSORFLOW1)
def test_an_optimizer_of_tensorflow_1_updates_as_in_its_graph(name: str) -> None:
    kind = getattr(tf.compat.v1.train, name)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = [
            tf.compat.v1.get_variable(n, initializer=np.full(3, 0.5, np.float32), use_resource=True)
            for n in "ab"
        ]
        loss = sum(tf.reduce_sum((weight - TARGET) ** 2) for weight in weights)
        train_op = kind(learning_rate=RATE, **TENSORFLOW1[name]).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        expected = [session.run(weights)]
        for _ in range(4):
            session.run(train_op)
            expected.append(session.run(weights))
        names = {variable.op.name for variable in tf.compat.v1.global_variables()}
    node = {
        "_target_": f"tensorflow.compat.v1.train.{name}",
        "learning_rate": RATE,
        **TENSORFLOW1[name],
    }
    optimizer: Any = build_optimizer(tiny(optimizer=node), tf.Variable(0, dtype=tf.int64))
    trained = Trained(optimizer)
    np.testing.assert_allclose(trained.taken(4), expected, rtol=1e-6)
    owners = dict(zip([id(v.value) for v in trained.variables], "ab", strict=True))
    state = {name for _, name in optimizer.state(lambda variable: owners[id(variable)])}
    assert state == names - {"a", "b"}


def test_averages_take_the_weights_place_until_the_end_or_an_error() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight, average = (
            tf.compat.v1.get_variable(name, initializer=value, use_resource=True)
            for name, value in (("w", 5.0), ("average", 4.5))
        )
        averages = AveragedWeights([(weight, average)])
        session.run(tf.compat.v1.global_variables_initializer())
        with contextlib.suppress(ZeroDivisionError), averages.in_place(session):
            assert session.run([weight, average]) == [4.5, 5.0]
            raise ZeroDivisionError
        assert session.run([weight, average]) == [5.0, 4.5]


def test_averages_in_a_checkpoint_stand_for_their_weights(tmp_path: Path) -> None:
    average = "w/ExponentialMovingAverage"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        named = {name: tf.compat.v1.get_variable(name, []) for name in ("w", "b", average)}
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"))
    chosen = averaged_names({"w": named["w"], "b": named["b"]}, prefix)
    assert chosen == {average: named["w"], "b": named["b"]}


def _rates(node: Any, steps: list[int]) -> list[float]:
    optimizer = {"_target_": "keras.optimizers.SGD", "learning_rate": node}
    built: Any = build_optimizer(tiny(optimizer=optimizer), step := tf.Variable(0, dtype=tf.int64))
    built.build([keras.Variable(0.0)])
    rates = []
    for value in steps:
        step.assign(value)
        built.iterations.assign(value)
        rates.append(float(built.learning_rate))
    return rates


def _shipped(name: str, *overrides: str) -> Any:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        schedule = f"+schedule@optimizer.learning_rate={name}"
        changes = [f"optimizer.learning_rate.{override}" for override in overrides]
        config = compose("config", ["+experiment=digits_cnn", schedule, *changes])
    return validate(config).optimizer["learning_rate"]


SHIPPED = [
    (
        "cosine",
        ["decay_steps=100", "warmup_steps=10", "warmup_target=1e-2"],
        {0: 1e-3, 5: 5.5e-3, 10: 1e-2, 60: 5e-3, 110: 0.0},
    ),
    ("exponential", ["decay_steps=10"], {0: 1e-3, 10: 5e-4, 20: 2.5e-4}),
    ("piecewise", ["boundaries=[10,20]"], {10: 1e-3, 11: 3e-4, 21: 1e-4}),
    ("warmup", ["decay_steps=10"], {0: 0.0, 5: 5e-4, 10: 1e-3, 50: 1e-3}),
]


def test_every_shipped_schedule_is_tested() -> None:
    assert {path.stem for path in (CONF / "schedule").glob("*.yaml")} == {
        schedule for schedule, *_ in SHIPPED
    }


@pytest.mark.parametrize(("name", "overrides", "expected"), SHIPPED)
def test_a_shipped_schedule(name: str, overrides: list[str], expected: dict[int, float]) -> None:
    rates = _rates(_shipped(name, *overrides), list(expected))
    assert rates == pytest.approx(list(expected.values()), abs=1e-9)


DECAY = {
    "_target_": "tensorflow.compat.v1.train.exponential_decay",
    "learning_rate": 0.5,
    "global_step": "${graph:global_step}",
    "decay_steps": 1,
    "decay_rate": 0.5,
}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (0.5, [0.5, 0.5]),
        (DECAY, [0.5, 0.125]),
        ({"_target_": "tests.samples.odd.halved", "_partial_": True}, [1.0, 0.25]),
    ],
)
def test_a_rate_is_a_number_or_a_function_of_the_step(node: Any, expected: list[float]) -> None:
    assert _rates(node, [0, 2]) == expected


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("fast", r"learning_rate is 'fast'"),
        (True, "learning_rate is True"),
        ([0.1], r"learning_rate is \[0.1\]"),
        ({"decay_steps": 3}, r"learning_rate is \{'decay_steps': 3\}"),
        ({"_target_": "builtins.str"}, "neither a number nor"),
    ],
)
def test_what_is_no_rate_is_refused(node: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _rates(node, [0])
    assert "+schedule@optimizer.learning_rate=cosine" in caught.value.problems[0].remedy


def test_without_a_number_it_is_the_default_of_the_optimizer() -> None:
    node = {"_target_": "tensorflow.compat.v1.train.AdamOptimizer"}
    optimizer: Any = build_optimizer(tiny(optimizer=node), tf.Variable(0, dtype=tf.int64))
    assert float(optimizer.learning_rate) == pytest.approx(0.001)
