from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from runner.config.schema import SweepConfig
from runner.sweeps.bands import Band, bands
from runner.sweeps.study_figures import (
    MOST,
    band_plots,
    plot_bands,
    study_of,
    study_plots,
)
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from runner.training.figures import draw
from tests.support.sweeping import ACCURACY, LOSS, finished


def _trial(number: int, loss: float, **changes: Any) -> Attempt:
    values = {"rate": f"{0.1 * (number % 3)}", "optimizer": "adam" if number % 2 else "sgd"}
    given = {"values": values, "curve": ((1, 1.0), (2, loss)), "objective": None}
    return finished(number, loss, **{**given, **changes})


TRIALS = [
    *(_trial(number, 0.5 + 0.1 * (number % 3)) for number in range(6)),
    _trial(6, float("nan"), status=Status.FAILED),
]


def test_a_grid_becomes_a_study() -> None:
    study = study_of(TRIALS, [LOSS])
    assert [trial.state for trial in study.trials][5:] == [TrialState.COMPLETE, TrialState.FAIL]
    assert study.trials[1].params == {"rate": 0.1, "optimizer": "adam"}
    assert study.trials[1].intermediate_values == {1: 1.0, 2: pytest.approx(0.6)}
    assert study.best_trial.number == 0


@pytest.mark.parametrize(
    ("typed", "choices"),
    [
        (["1e-2", "1e-3", "3e-3", "10"], (0.001, 0.003, 0.01, 10)),
        (["b", "2", "1"], (1, 2, "b")),
        (["true", "false"], (False, True)),
        (["nan", "1", "inf"], (1, "nan", "inf")),
    ],
)
def test_numbers_stand_in_their_order(typed: list[str], choices: tuple[object, ...]) -> None:
    trials = [_trial(number, 0.5, values={"x": value}) for number, value in enumerate(typed)]
    distribution = study_of(trials, [LOSS]).trials[0].distributions["x"]
    assert isinstance(distribution, CategoricalDistribution)
    assert distribution.choices == choices
    assert [type(choice) for choice in distribution.choices] == [type(choice) for choice in choices]


def test_figures_are_of_what_there_is_and_one_that_cannot_be_drawn_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trials = [
        _trial(number, 0.1 * number, values={"units": value, "seed": str(number)})
        for number, value in enumerate("abc")
    ]
    (tmp_path / "slices.png").mkdir()
    plots = study_plots(study_of(trials, [LOSS]), [LOSS])
    curves = [replace(trial, curve=((1, 0.5),)) for trial in trials[:2]]
    plots |= band_plots(bands(curves, LOSS, []), LOSS, SweepConfig())
    files = draw(plots, tmp_path)
    kinds = ["objective_over_trials", "parallel_coordinates", "importances", "learning_curves"]
    assert [file.stem for file in files] == kinds
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    (message,) = [log.message for log in caplog.records if log.name.startswith("runner")]
    assert message.startswith("The figure slices is left out: [Errno ")
    names = [list(study_plots(study_of(some, [LOSS]), [LOSS])) for some in (TRIALS[:1], TRIALS[6:])]
    assert names == [["objective_over_trials", "learning_curves"], []]


def test_one_key_has_no_coordinates_to_compare() -> None:
    trials = [_trial(number, 0.1 * number, values={"seed": str(number)}) for number in range(3)]
    names = list(study_plots(study_of(trials, [LOSS]), [LOSS]))
    assert names == ["objective_over_trials", "slices", "learning_curves"]


def test_figures_of_two_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *arguments, **options: None)
    objectives = [LOSS, ACCURACY]
    names = {
        file.stem for file in draw(study_plots(study_of(TRIALS, objectives), objectives), tmp_path)
    }
    assert {"pareto_front", "slices_loss", "slices_accuracy"} <= names


def _bands(groups: int, seeds: int) -> list[Band]:
    trials = [
        finished(
            *(0, None),
            values={"model.units": str(group), "seed": str(seed)},
            curve=((10, 0.1 * seed), (20, 0.1 * group + 0.01 * seed)),
        )
        for group in range(groups)
        for seed in range(seeds)
    ]
    return bands(trials, ACCURACY, ["seed"])


def test_a_line_and_a_range_for_each_band() -> None:
    axes = plot_bands(_bands(3, 2), ACCURACY, SweepConfig(threshold=0.9))
    labels = [str(line.get_label()) for line in axes.lines[:3]]
    assert labels == ["units=2", "units=1", "units=0"]
    assert len(axes.collections) == 3
    assert axes.get_title("left") == "validation/accuracy: mean and range of 2 trials each (seed)"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global step", "validation/accuracy")
    assert [str(line.get_label()) for line in axes.lines[3:]] == ["threshold 0.9"]
    assert len({line.get_color() for line in axes.lines[:3]}) == 3
    axes = plot_bands(_bands(2, 1), ACCURACY, SweepConfig())
    assert (len(axes.lines), len(axes.collections)) == (2, 0)
    assert axes.get_title("left") == "validation/accuracy of each trial"
    pyplot.close("all")


def test_there_is_a_figure_of_bands_unless_there_are_none_or_too_many() -> None:
    counts = [
        len(band_plots(_bands(groups, 1), ACCURACY, SweepConfig()))
        for groups in (0, 1, MOST, MOST + 1)
    ]
    assert counts == [0, 1, 1, 0]
