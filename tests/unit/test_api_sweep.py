"""`runner.sweep`: a grid or a search of an experiment or of a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import runner
from runner.errors import ConfigError, SweepError

X = np.ones((4, 2), "float32")
Y = np.ones((4, 1), "float32")


def line(rate: float = 0.1, fails: bool = False) -> keras.Model:
    if fails:
        raise RuntimeError("as told")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="line")], name="line")
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def sweep(folder: Path, params: dict[str, Any], **arguments: Any) -> runner.SweepResult:
    settings = {
        "run_dir": str(folder / "runs"),
        "tracking.uri": None,
        "hydra.sweep.dir": str(folder / "sweeps"),
        "sweep.figures": False,
    }
    data = {"x": X, "y": Y, "validation_data": (X, Y)}
    return runner.sweep(line, params, settings, **{**data, **arguments})


def test_a_grid_has_a_row_for_each_trial_and_the_best_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = {"model.rate": [0.001, 0.1]}
    swept = sweep(tmp_path, params, epochs=3)
    frame = swept.frame
    assert list(frame["model.rate"]) == [0.001, 0.1]
    assert list(frame["status"]) == ["FINISHED"] * 2
    assert frame["objective"][1] < frame["objective"][0]
    assert swept.best is not None
    assert swept.best.values == {"model.rate": "0.1"}
    best = swept.best_run
    assert best is not None
    assert best.best["loss"] == frame["objective"][1]
    assert len(best.model().weights) == 2
    assert "<table" in swept._repr_html_()
    assert "..." not in repr(swept)
    again = sweep(tmp_path, params, epochs=3)
    assert "2 of 2 trials have finished before" in capsys.readouterr().out
    assert again.frame.equals(frame)


def test_a_sweep_needs_a_function(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="begin with the weights that the one before has left"):
        runner.sweep(line(), {"seed": [1, 2]}, {"run_dir": str(tmp_path)}, x=X, y=Y)


def test_a_search_draws_trials(tmp_path: Path) -> None:
    swept = sweep(tmp_path, {"model.rate": "interval(0.001, 0.1)"}, trials=2)
    assert len(swept.frame) == 2
    assert swept.frame["model.rate"].between(0.001, 0.1).all()


def test_mistakes_end_a_sweep_before_it_starts_and_failures_after_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.speed is not set"):
        sweep(tmp_path, {"model.speed": [1, 2]})
    with pytest.raises(ConfigError, match="experiment 'no' is not known"):
        runner.sweep("no", {"seed": [0, 1]})
    with pytest.raises(ConfigError, match=r"hydra.sweeper.params has seed: \[\]"):
        sweep(tmp_path, {"seed": []})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SweepError, match="1 of 2 trials failed"):
        sweep(tmp_path, {"model.fails": [False, True]})
