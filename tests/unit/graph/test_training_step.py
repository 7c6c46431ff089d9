"""The parts of an update: learning rate, clipping, several batches, moving averages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.config.choices import NonFinite, StateClass
from runner.config.schema import (
    ClipConfig,
    NonFiniteConfig,
    RunConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import ConfigError
from tests.samples.graphs import build, opened, training_of
from tests.support.configs import tiny

SGD = "tensorflow.compat.v1.train.GradientDescentOptimizer"
AVERAGE = "weight/ExponentialMovingAverage"


def _config(rate: Any = 0.5, **train: Any) -> RunConfig:
    """The loss is weights times features, so that its gradient is the mean of the features."""
    return tiny(
        data={"_target_": "tests.samples.odd.Rising"},
        model={"_target_": "tests.samples.odd.Linear"},
        loss={"_target_": "tests.samples.odd.Sum"},
        metrics={},
        optimizer={"_target_": SGD, "learning_rate": rate},
        train=TrainConfig(**train),
    )


SCHEDULE = {
    "_target_": "tensorflow.compat.v1.train.piecewise_constant",
    "x": "${graph:global_step}",
    "boundaries": [0],
    "values": [1.0, 0.5],
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (_config(1.0, clip=ClipConfig(global_norm=1.5)), [-1.0, -2.5, -4.0]),
        (_config(SCHEDULE), [-1.0, -2.0, -3.5]),
        # Batches of 1 and 2, then of 3 and 4: mean gradients of 1.5 and 3.5.
        (_config(1.0, accumulate=2), [-1.5, -5.0]),
    ],
    ids=["clipped", "schedule", "accumulated"],
)
def test_the_weights_after_each_step(config: RunConfig, expected: list[float]) -> None:
    with opened(config) as run:
        assert run.after_steps("weight", len(expected)) == pytest.approx(expected)
        training = training_of(run.built)
        assert training.learning_rate_scale is None, "only a rollback brings one"
        # The step is read after the train op, the learning rate is that of the step.
        fetches = (training.step, training.input_seconds, training.learning_rate)
        step, seconds, rate = run.run(fetches)
        assert int(step) == len(expected) + 1
        assert seconds >= 0.0
        assert rate == (0.5 if config.optimizer["learning_rate"] == SCHEDULE else 1.0)


def test_an_optimizer_may_have_no_learning_rate() -> None:
    config = replace(_config(), optimizer={"_target_": "tests.samples.odd.fixed_descent"})
    with opened(config) as run:
        assert training_of(run.built).learning_rate is None
        assert run.after_steps("weight", 1) == pytest.approx([-0.1])


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"learning_rate_multiplier": 0.5}, "learning_rate_multiplier is 0.5"),
        ({"freeze_until_step": 2}, "freeze_until_step is set"),
    ],
)
def test_a_setting_of_learning_rates_without_one_is_refused(
    settings: dict[str, Any], state: str
) -> None:
    config = replace(_config(), optimizer={"_target_": "tests.samples.odd.fixed_descent"})
    config.scaffolds = {"all": ScaffoldConfig(VariablesConfig(["*"]), **settings)}
    with pytest.raises(ConfigError, match=rf"{state}, and there is no optimizer\.learning_rate"):
        build(config)


def test_averages_follow_the_weights_and_are_evaluated(tmp_path: Path) -> None:
    config = _config(1.0, ema_decay=0.5)
    with opened(config) as run:
        trace = run.after_steps(AVERAGE, 3)
        averages = training_of(run.built).averages
        assert averages is not None
        with averages.in_place(run.session):
            averaged = run.evaluate()
        prefix = run.save(tmp_path)
    # As in Keras, the first value is that of the weight, which is -1, -3 and -6.
    assert trace == pytest.approx([-1.0, -2.0, -4.0])
    specs = {spec.name: spec for spec in run.built.specs}
    assert specs[AVERAGE].state is StateClass.moving_averages
    for evaluate_ema in (True, False):
        config.train.evaluate_ema = evaluate_ema
        with opened(build(config, train=False), restore=prefix) as other:
            assert (other.evaluate() == averaged) is evaluate_ema


def test_a_rollback_brings_a_scale_of_the_learning_rate() -> None:
    rollback = NonFiniteConfig(action=NonFinite["rollback"])
    with opened(_config(1.0, non_finite=rollback)) as run:
        training = training_of(run.built)
        assert training.learning_rate_scale is run.built.variables["learning_rate_scale"]
        run.run(training.learning_rate_scale.assign(0.25))
        assert run.run((training.learning_rate, training.train_op))[0] == 0.25
        assert run.values("weight") == [-0.25]


def test_a_reference_to_what_is_not_there_yet() -> None:
    optimizer = {"_target_": SGD, "learning_rate": 0.1, "name": "${graph:loss}"}
    config = replace(_config(), optimizer=optimizer)
    with pytest.raises(ConfigError, match=r"optimizer\.name is \$\{graph:loss\}") as caught:
        build(config)
    assert "learning_rate" in caught.value.problems[0].choices
