from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from runner.config.choices import Goal
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.figures import draw, importances, study_of
from runner.sweeps.summary import Objective

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)


def _trial(number: int, loss: float, **changes: Any) -> Attempt:
    given: dict[str, Any] = {
        "metrics": {"loss": loss, "accuracy": 1 - loss},
        "status": TrialStatus.FINISHED,
        "curve": ((1, 1.0), (2, loss)),
    }
    values = {"rate": f"{0.1 * (number % 3)}", "optimizer": "adam" if number % 2 else "sgd"}
    return Attempt(number, 1, (), **{"values": values, **given, **changes})


TRIALS = [
    *(_trial(number, 0.5 + 0.1 * (number % 3)) for number in range(6)),
    _trial(6, float("nan"), status=TrialStatus.FAILED),
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
        (["b", "2", "1"], ("b", 2, 1)),
        (["true", "false"], (True, False)),
        (["nan", "1", "inf"], ("nan", 1, "inf")),
    ],
)
def test_numbers_stand_in_their_order(typed: list[str], choices: tuple[object, ...]) -> None:
    trials = [_trial(number, 0.5, values={"x": value}) for number, value in enumerate(typed)]
    distribution = study_of(trials, [LOSS]).trials[0].distributions["x"]
    assert isinstance(distribution, CategoricalDistribution)
    assert distribution.choices == choices
    assert [type(each) for each in distribution.choices] == [type(each) for each in choices]


def test_figures_of_one_objective(tmp_path: Path) -> None:
    files = draw(study_of(TRIALS, [LOSS]), [LOSS], tmp_path / "figures")
    assert [file.name for file in files] == [
        "objective_over_trials.png",
        "slices.png",
        "parallel_coordinates.png",
        "importances.png",
        "learning_curves.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_figures_of_two_objectives(tmp_path: Path) -> None:
    objectives = [LOSS, ACCURACY]
    names = [file.stem for file in draw(study_of(TRIALS, objectives), objectives, tmp_path)]
    assert "pareto_front" in names
    assert {"slices_loss", "slices_accuracy"} <= set(names)


def test_one_trial_or_none_has_what_can_be_drawn(tmp_path: Path) -> None:
    one = [file.stem for file in draw(study_of(TRIALS[:1], [LOSS]), [LOSS], tmp_path)]
    assert one == ["objective_over_trials", "learning_curves"]
    assert draw(study_of(TRIALS[6:], [LOSS]), [LOSS], tmp_path) == []


def test_values_that_would_be_malformed_formulas_are_drawn_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objective = Objective(r"validation/$\w$", Goal.minimize)
    trials = [
        _trial(number, 0.1 * number, objective=0.1 * number, values={r"$\k$": value})
        for number, value in enumerate([r"^$\w+$", r"$\d$", "b"])
    ]
    files = draw(study_of(trials, [objective]), [objective], tmp_path)
    assert len(files) == 5
    assert caplog.messages == []


def test_a_figure_that_cannot_be_drawn_is_told_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "slices.png").mkdir()
    names = [file.stem for file in draw(study_of(TRIALS, [LOSS]), [LOSS], tmp_path)]
    assert names == [
        "objective_over_trials",
        "parallel_coordinates",
        "importances",
        "learning_curves",
    ]
    (message,) = caplog.messages
    assert message.startswith("The figure slices is left out: [Errno ")


def test_what_matters_is_found() -> None:
    (found,) = importances(study_of(TRIALS, [LOSS]), [LOSS]).values()
    assert sum(found.values()) == pytest.approx(1)
    assert next(iter(found)) == "rate"
    assert importances(study_of(TRIALS[:1], [LOSS]), [LOSS]) == {}
