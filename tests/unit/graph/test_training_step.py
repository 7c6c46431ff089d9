"""What an update does: learning rate, clipping, several batches, moving averages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import NonFinite
from runner.config.schema import ClipConfig, NonFiniteConfig, RunConfig, TrainConfig
from runner.errors import ConfigError
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph, Training
from runner.hooks import evaluate
from runner.restoration.variables import StateClass
from tests.tiny.configs import tiny

SGD = "tensorflow.compat.v1.train.GradientDescentOptimizer"
LINEAR = "tests.tiny.odd.Linear"


def _config(rate: Any = 0.5, **train: Any) -> RunConfig:
    """The loss is weights times features, so that its gradient is the mean of the features."""
    return tiny(
        data={"_target_": "tests.tiny.odd.Rising"},
        model={"_target_": LINEAR},
        loss={"_target_": "tests.tiny.odd.Sum"},
        metrics={},
        optimizer={"_target_": SGD, "learning_rate": rate},
        train=TrainConfig(**train),
    )


@contextmanager
def _session(config: RunConfig) -> Iterator[tuple[BuiltGraph, Training, tf.Session]]:
    built = build_graph(config, "validation", train=True)
    assert built.training is not None
    with built.graph.as_default(), tf.Session() as session:
        session.run([tf.global_variables_initializer(), built.training.input_initializer])
        yield built, built.training, session


def _weights(config: RunConfig, steps: int) -> list[float]:
    with _session(config) as (built, training, session):
        found = []
        for _ in range(steps):
            session.run(training.train_op)
            found.append(float(session.run(built.variables["weight"])))
    return found


def test_batches_rise_by_one() -> None:
    assert _weights(_config(1.0), 3) == [-1.0, -3.0, -6.0]


@pytest.mark.parametrize(
    "bounds", [ClipConfig(value=1.5), ClipConfig(norm=1.5), ClipConfig(global_norm=1.5)]
)
def test_gradients_are_clipped(bounds: ClipConfig) -> None:
    assert _weights(_config(1.0, clip=bounds), 3) == pytest.approx([-1.0, -2.5, -4.0])


def test_a_schedule_follows_the_global_step() -> None:
    node = {
        "_target_": "tensorflow.compat.v1.train.piecewise_constant",
        "x": "${graph:global_step}",
        "boundaries": [0],
        "values": [1.0, 0.5],
    }
    assert _weights(_config(node), 3) == [-1.0, -2.0, -3.5]
    with _session(_config(node)) as (_, training, session):
        rates = [session.run((training.learning_rate, training.train_op))[0] for _ in range(3)]
    assert rates == [1.0, 0.5, 0.5]


def test_an_optimizer_may_have_no_learning_rate() -> None:
    config = replace(_config(), optimizer={"_target_": "tests.tiny.odd.fixed_descent"})
    with _session(config) as (_, training, session):
        assert training.learning_rate is None
        session.run(training.train_op)


def test_several_batches_make_one_update() -> None:
    """Batches of 1 and 2, then of 3 and 4: mean gradients of 1.5 and 3.5."""
    assert _weights(_config(1.0, accumulate=2), 2) == [-1.5, -5.0]
    with _session(_config(1.0, accumulate=2)) as (_, training, session):
        steps = [int(session.run(training.step)) for _ in range(2)]
        assert steps == [1, 2]
        assert session.run(training.input_seconds) >= 0.0


def test_metrics_of_several_batches_are_their_mean() -> None:
    with _session(_config(0.0, accumulate=3)) as (built, training, session):
        session.run(built.variables["weight"].assign(1.0))
        fetches = (training.values["loss"], training.train_op)
        assert [session.run(fetches)[0] for _ in range(2)] == [2.0, 5.0]


def test_batch_norm_sees_every_one_of_several_batches() -> None:
    means = []
    for config in (tiny(), tiny(train=TrainConfig(accumulate=3))):
        with _session(config) as (built, training, session):
            mean = built.variables["body/norm/moving_mean"]
            before = session.run(mean)
            session.run(training.train_op)
            means.append(float(np.abs(session.run(mean) - before).sum()))
    assert means[1] > 2 * means[0] > 0


def test_averages_follow_the_weights_and_are_saved() -> None:
    config = _config(1.0, ema_decay=0.5)
    with _session(config) as (built, training, session):
        average = built.variables["weight/ExponentialMovingAverage"]
        found = []
        for _ in range(3):
            session.run(training.train_op)
            found.append(float(session.run(average)))
        specs = {each.name: each for each in built.specs}
        assert specs["weight/ExponentialMovingAverage"].state is StateClass.MOVING_AVERAGE
    # Decays of 2/11, 3/12 and 4/13, below 0.5.
    first = -1.0 * 9 / 11
    second = first * 3 / 12 - 3.0 * 9 / 12
    assert found == pytest.approx([first, second, second * 4 / 13 - 6.0 * 9 / 13])


@pytest.mark.parametrize(("evaluate_ema", "same"), [(True, True), (False, False)])
def test_an_evaluation_graph_reads_the_averages_as_the_weights(
    tmp_path: Any, evaluate_ema: bool, same: bool
) -> None:
    config = _config(1.0, ema_decay=0.9, evaluate_ema=evaluate_ema)
    with _session(config) as (built, training, session):
        for _ in range(3):
            session.run(training.train_op)
        assert training.averages is not None
        with training.averages.in_place(session):
            averaged = evaluate(session, built.split)
        prefix = built.saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    other = build_graph(config, "validation", train=False)
    with other.graph.as_default(), tf.Session() as session:
        other.saver.restore(session, prefix)
        assert (evaluate(session, other.split) == averaged) is same


def test_only_a_rollback_brings_a_scale_of_the_learning_rate() -> None:
    rollback = NonFiniteConfig(action=NonFinite["rollback"])
    with _session(_config(1.0, non_finite=rollback)) as (built, training, session):
        assert training.learning_rate_scale is built.variables["learning_rate_scale"]
        session.run(training.learning_rate_scale.assign(0.25))
        assert session.run(training.learning_rate) == 0.25
        session.run(training.train_op)
        assert session.run(built.variables["weight"]) == -0.25
    with _session(_config()) as (built, training, _):
        assert training.learning_rate_scale is None
        assert "learning_rate_scale" not in built.variables


def test_a_reference_to_what_is_not_there_yet() -> None:
    config = replace(
        _config(), optimizer={"_target_": SGD, "learning_rate": 0.1, "name": "${graph:loss}"}
    )
    with pytest.raises(ConfigError, match=r"optimizer\.name is \$\{graph:loss\}") as caught:
        build_graph(config, "validation", train=True)
    assert "learning_rate" in caught.value.problems[0].choices
