from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.choices import Goal
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.figures import MOST, band_figure, draw_bands
from runner.sweeps.learning_curves import Band, bands
from runner.sweeps.summary import Objective

ACCURACY = Objective("validation/accuracy", Goal.maximize)
ROOT = Path(__file__).resolve().parents[3]


def _bands(groups: int, seeds: int) -> list[Band]:
    trials = [
        Attempt(
            0,
            1,
            (),
            {"model.units": str(group), "seed": str(seed)},
            status=TrialStatus.FINISHED,
            curve=((10, 0.1 * seed), (20, 0.1 * group + 0.01 * seed)),
        )
        for group in range(groups)
        for seed in range(seeds)
    ]
    return bands(trials, ACCURACY, ["seed"])


def test_a_line_and_a_range_for_each_band(tmp_path: Path) -> None:
    (axes,) = band_figure(_bands(3, 2), ACCURACY, ["seed"], threshold=0.9).axes
    labels = [str(line.get_label()) for line in axes.lines[:3]]
    assert labels == ["units=2", "units=1", "units=0"]
    assert len(axes.collections) == 3
    assert axes.get_title("left") == "validation/accuracy: mean and range of 2 trials each (seed)"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global step", "validation/accuracy")
    assert [text.get_text() for text in axes.texts] == ["0.9"]
    assert len({line.get_color() for line in axes.lines[:3]}) == 3


def test_single_trials_have_no_range_and_no_threshold_no_line() -> None:
    (axes,) = band_figure(_bands(2, 1), ACCURACY, ["seed"]).axes
    assert (len(axes.lines), len(axes.collections), len(axes.texts)) == (2, 0, 0)
    assert axes.get_title("left") == "validation/accuracy of each trial"


def test_the_figure_is_a_file_of_the_folder_it_makes(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "learning_curves.png"
    assert draw_bands(_bands(2, 2), ACCURACY, path, ["seed"]) == [path]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_too_many_bands_to_tell_apart_are_left_to_another_figure(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    assert draw_bands(_bands(MOST + 1, 1), ACCURACY, path, []) == []
    assert draw_bands([], ACCURACY, path, []) == []
    assert not path.exists()


def test_a_value_that_would_be_a_malformed_formula_is_drawn_as_it_is(tmp_path: Path) -> None:
    trial = Attempt(
        0, 1, (), {"note": r"^$\w+$"}, status=TrialStatus.FINISHED, curve=((10, 0.5), (20, 0.6))
    )
    path = tmp_path / "learning_curves.png"
    objective = Objective(r"validation/$\w$", Goal.maximize)
    assert draw_bands(bands([trial], objective, []), objective, path, [r"$\w$"]) == [path]


def test_a_figure_that_cannot_be_drawn_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "figures").write_text("in its folder's place")
    path = tmp_path / "figures" / "learning_curves.png"
    assert draw_bands(_bands(2, 2), ACCURACY, path, ["seed"]) == []
    (message,) = caplog.messages
    assert message.startswith("The figure learning_curves is left out: [Errno ")


def test_it_needs_no_optuna() -> None:
    code = "import sys, runner.sweeps.figures; print('optuna' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
