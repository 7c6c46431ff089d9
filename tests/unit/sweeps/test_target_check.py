from __future__ import annotations

from typing import Any

import pytest

import runner.sweeps.checks
from runner.errors import ConfigError
from runner.sweeps.checks import check_targets
from runner.sweeps.points import ComposedPoint, Point
from tests.tiny.configs import tiny

NET = "tests.tiny.experiment.Net"


def _composed(*changes: dict[str, Any]) -> list[ComposedPoint]:
    return [
        ComposedPoint(Point((), {"n": str(number)}), tiny(**each), "")
        for number, each in enumerate(changes)
    ]


def test_all_mistakes_are_told_with_their_trials() -> None:
    model = {"_target_": NET, "jit_compile": False, "dtype_policy": "float32"}
    hooks = {"mine": {"_target_": "tests.tiny.hooks.Slow", "seconds": "${graph:loss}"}}
    adam = {"_target_": "tensorflow.compat.v1.train.AdamOptimzer", "learning_rate": 0.1}
    with pytest.raises(ConfigError) as raised:
        check_targets(
            _composed(
                {"model": {**model, "units": 3}},
                {"model": {**model, "unts": 3}},
                {"model": {**model, "unts": 4}, "hooks": hooks},
                {"optimizer": adam},
            )
        )
    found = {each.state: each.cause for each in raised.value.problems}
    assert found == {
        f"model.unts is not an argument of {NET}": (
            "it is misspelt, or belongs elsewhere (in 2 of 4 trials: n=1; n=2)"
        ),
        "hooks.mine.marker has no value": (
            "tests.tiny.hooks.Slow needs it (in 1 of 4 trials: n=2)"
        ),
        "optimizer._target_ is 'tensorflow.compat.v1.train.AdamOptimzer'": found[
            "optimizer._target_ is 'tensorflow.compat.v1.train.AdamOptimzer'"
        ],
    }
    assert "units" in raised.value.problems[0].choices


def test_what_differs_only_in_values_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(
        runner.sweeps.checks, "check_signature", lambda key, node: checked.append(key)
    )
    models = [{"_target_": NET, "units": units} for units in range(3)]
    check_targets(_composed(*({"model": each} for each in models)))
    assert sorted(checked) == ["data", "loss", "metrics.accuracy", "model", "optimizer"]


def test_values_that_do_not_fit_are_told_each() -> None:
    models = [{"_target_": NET, "units": units} for units in (3, "x", 0.5, "x", 4.0)]
    with pytest.raises(ConfigError) as raised:
        check_targets(_composed(*({"model": each} for each in models)))
    assert {each.state: each.cause for each in raised.value.problems} == {
        "model.units is 'x'": f"{NET} takes a whole number (in 2 of 5 trials: n=1; n=3)",
        "model.units is 0.5": f"{NET} takes a whole number (in 1 of 5 trials: n=2)",
    }
