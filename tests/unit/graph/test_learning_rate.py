from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
import yaml
from hydra import compose, initialize_config_dir

from runner.config.schema import register
from runner.config.validation import validate
from runner.errors import ConfigError
from runner.graph.training_step import learning_rate

CONF = Path(__file__).resolve().parents[3] / "conf"


SGD = "tensorflow.compat.v1.train.GradientDescentOptimizer"


def rates(node: Any, steps: list[int]) -> list[float]:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = learning_rate({"_target_": SGD, "learning_rate": node}, step)
        assert rate is not None
        assert (rate.shape, rate.dtype) == ((), tf.float32)
        return [float(session.run(rate, {step: each})) for each in steps]


def shipped(name: str, *overrides: str) -> Any:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(
            "config",
            [
                "+experiment=digits_cnn",
                f"+schedule@optimizer.learning_rate={name}",
                *(f"optimizer.learning_rate.{each}" for each in overrides),
            ],
        )
    return validate(config).optimizer["learning_rate"]


def test_a_number_stays_what_it_is() -> None:
    assert rates(0.25, [0, 1000]) == [0.25, 0.25]


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("cosine", ["decay_steps=100"], {0: 1e-3, 50: 5e-4, 100: 0.0, 200: 0.0}),
        (
            "cosine",
            ["decay_steps=100", "warmup_steps=10", "warmup_target=1e-2"],
            {0: 1e-3, 5: 5.5e-3, 10: 1e-2, 60: 5e-3, 110: 0.0},
        ),
        ("exponential", ["decay_steps=10"], {0: 1e-3, 10: 5e-4, 20: 2.5e-4}),
        ("piecewise", ["boundaries=[10,20]"], {10: 1e-3, 11: 3e-4, 21: 1e-4}),
        ("warmup", ["decay_steps=10"], {0: 0.0, 5: 5e-4, 10: 1e-3, 50: 1e-3}),
    ],
)
def test_a_shipped_schedule(name: str, overrides: list[str], expected: dict[int, float]) -> None:
    found = rates(shipped(name, *overrides), list(expected))
    assert found == pytest.approx(list(expected.values()), abs=1e-9)


def test_every_shipped_schedule_is_tested() -> None:
    files = {path.stem for path in (CONF / "schedule").glob("*.yaml")}
    assert files == {"cosine", "exponential", "piecewise", "warmup"}
    for path in (CONF / "schedule").glob("*.yaml"):
        assert "_target_" in yaml.safe_load(path.read_text())


def test_what_is_no_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate is 'fast'") as caught:
        rates("fast", [0])
    assert "schedule@optimizer.learning_rate=cosine" in caught.value.problems[0].remedy


def test_a_target_that_gives_no_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither a number nor a schedule"):
        rates({"_target_": "builtins.str"}, [0])


def test_without_a_number_it_is_the_default_of_the_optimizer() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.constant(0, tf.int64)
        rate = learning_rate({"_target_": "tensorflow.compat.v1.train.AdamOptimizer"}, step)
        assert session.run(rate) == pytest.approx(0.001)
        assert learning_rate({"_target_": SGD}, step) is None
