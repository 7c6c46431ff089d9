"""The figures of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

from runner.training.figures import draw, run_plots

HISTORY = {
    step: {"train/loss": 2.0 / step, "train_mean/loss": 2.5 / step, "validation/loss": 3.0 / step}
    | {"train/learning_rate": 0.1, "validation/accuracy": step / 10, "other": 1.0}
    for step in (1, 2, 3)
}


def _variable(size: int, source: str = "", state: str = "weight") -> dict[str, Any]:
    source_tensor = {"source": source} if source else None
    return {"state": state, "bytes": size, "source_tensor": source_tensor, "initializer": "Zeros"}


def _layer(name: str, relative: float | None) -> dict[str, Any]:
    return {"layer": name, "relative": relative, "agrees": relative is not None}


PLAN: dict[str, Any] = {
    "sources": {"cnn": {}, "head": None},
    "variables": [
        *(_variable(600, "cnn"), _variable(300, "cnn", state="batch norm"), _variable(100)),
        _variable(9000, state="optimizer slot"),
    ],
    "proofs": [
        {
            "scaffold": "cnn",
            "agrees": False,
            "tolerance": 1e-4,
            "layers": [_layer("conv", 1e-7), _layer("norm", 0.0), _layer("dense", None)],
        }
    ],
}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    pyplot.close("all")


def test_a_run_has_three_kinds_of_figures(tmp_path: Path) -> None:
    plots = run_plots(HISTORY, PLAN, best=2)
    assert list(plots) == ["learning_curves", "sources_of_weights", "proof_cnn"]
    files = draw(plots, tmp_path / "figures")
    assert [file.read_bytes()[:4] for file in files] == [b"\x89PNG"] * 3
    # One without a source or a second step has nothing to show.
    assert not run_plots(
        {1: {"train/loss": 1.0}}, {**PLAN, "sources": {"head": None}, "proofs": []}
    )
    assert not run_plots({}, None)


def test_the_learning_curves_mark_the_best_step() -> None:
    run_plots(HISTORY, None, best=2)["learning_curves"]()
    loss, accuracy = pyplot.gcf().axes
    assert (loss.get_title(loc="left"), accuracy.get_title(loc="left")) == ("loss", "accuracy")
    curves = {str(line.get_label()): np.asarray(line.get_xydata()) for line in loss.get_lines()}
    assert list(curves) == ["training, one step", "training, mean", "validation", "best: 2"]
    assert curves["training, mean"][:, 1].tolist() == pytest.approx([2.5, 1.25, 2.5 / 3])
    assert curves["best: 2"][:, 0].tolist() == [2, 2]


def test_the_bars_are_bytes_by_source() -> None:
    run_plots({}, PLAN)["sources_of_weights"]()
    (axes,) = pyplot.gcf().axes
    assert [bar.get_width() for bar in axes.patches] == [900, 100]  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cnn", "Zeros (initializer)"]
    assert axes.get_title(loc="left") == "90.0 % of 1 kB from checkpoints"


def test_a_proof_that_differs_says_so() -> None:
    run_plots({}, PLAN)["proof_cnn"]()
    (axes,) = pyplot.gcf().axes
    assert axes.get_title(loc="left") == "cnn differs from its source"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv", "norm", "dense"]


def test_a_figure_that_cannot_be_drawn_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = draw({"bad": lambda: 1 / 0, "good": lambda: pyplot.plot([1])}, tmp_path)
    assert [file.name for file in files] == ["good.png"]
    assert "The figure bad is left out" in caplog.text
