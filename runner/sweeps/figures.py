"""The texts of a figure as they are: Matplotlib takes what stands between two `$` for a formula."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import optuna
import yaml
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, MaxNLocator
from optuna.distributions import CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.visualization import matplotlib as plots

from runner.config.choices import Goal
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.learning_curves import Band
from runner.sweeps.summary import Objective


def show_literally(figure: Figure) -> None:
    """Has a figure's texts, which hold names and values of users, shown as they are.

    The numbers along logarithmic axes are Matplotlib's own formulas, and stay so.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                for label in axis.get_ticklabels(which="both"):
                    label.set_parse_math(True)


logger = logging.getLogger(__name__)

Draw = Callable[[], Any]
_Value = bool | int | float | str

# It would tell of each study on the screen.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def study_of(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> optuna.Study:
    """Returns a study of trials that no search has chosen, such as those of a grid."""
    study = optuna.create_study(
        directions=[StudyDirection[each.goal.value.upper()] for each in objectives]
    )
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    choices = {
        key: _ordered(
            dict.fromkeys(_value(trial.values[key]) for trial in trials if key in trial.values)
        )
        for key in keys
    }
    for trial in trials:
        values = [each.of(trial) for each in objectives]
        known = [value for value in values if value is not None and not math.isnan(value)]
        complete = trial.status is TrialStatus.FINISHED and len(known) == len(objectives)
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if complete else TrialState.FAIL,
                values=known if complete else None,
                params={key: _value(value) for key, value in trial.values.items()},
                distributions={key: CategoricalDistribution(choices[key]) for key in trial.values},
                intermediate_values=dict(trial.curve) if len(objectives) == 1 else {},
            )
        )
    return study


def importances(
    study: optuna.Study, objectives: Sequence[Objective]
) -> dict[str, dict[str, float]]:
    """Returns objective -> key -> its part in the objective's variance, the largest first.

    Empty where there are too few trials, or nothing differs between them.
    """
    if not _comparable(study):
        return {}
    found = {}
    for index, objective in enumerate(objectives):
        with warnings.catch_warnings():
            # It reminds of the sign that `_loss` sees to.
            warnings.simplefilter("ignore")
            target = _loss(index, objective) if len(objectives) > 1 else None
            found[objective.name] = dict(
                optuna.importance.get_param_importances(study, target=target)
            )
    return found


def draw(
    study: optuna.Study,
    objectives: Sequence[Objective],
    folder: Path,
    besides: Collection[str] = (),
) -> list[Path]:
    """Draws the figures, those of the names `besides` excepted, and returns their files.

    What cannot be drawn of these trials is left out, which the log tells.
    """
    matplotlib.use("Agg")
    folder.mkdir(exist_ok=True)
    found = []
    for name, make in _figures(study, objectives).items():
        if name in besides:
            continue
        path = folder / f"{name}.png"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the plots' own making, about few trials.
            try:
                make()
                figure = pyplot.gcf()
                show_literally(figure)
                figure.set_size_inches(10, 6)
                figure.savefig(path, bbox_inches="tight", dpi=120)
            except Exception as error:  # noqa: BLE001 - of whatever library draws
                logger.warning("The figure %s is left out: %s", name, error)
                continue
            finally:
                pyplot.close("all")
        found.append(path)
    return found


def _figures(study: optuna.Study, objectives: Sequence[Objective]) -> Mapping[str, Draw]:
    if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return {}
    figures: dict[str, Draw] = {}
    for index, objective in enumerate(objectives):
        given: dict[str, Any] = {"target_name": objective.name}
        # Optuna draws best values so far, and pruned trials, only without a target.
        if len(objectives) > 1:
            given["target"] = _target(index)
        end = f"_{objective.name.rpartition('/')[2]}" if len(objectives) > 1 else ""
        figures[f"objective_over_trials{end}"] = _with(
            plots.plot_optimization_history, study, given
        )
        if _comparable(study):
            figures[f"slices{end}"] = _with(plots.plot_slice, study, given)
            figures[f"parallel_coordinates{end}"] = _with(
                plots.plot_parallel_coordinate, study, given
            )
            if "target" in given:
                given = {**given, "target": _loss(index, objective)}
            figures[f"importances{end}"] = _with(plots.plot_param_importances, study, given)
    if any(trial.intermediate_values for trial in study.get_trials(deepcopy=False)):
        figures["learning_curves"] = _with(plots.plot_intermediate_values, study, {})
    if len(objectives) in (2, 3):
        names = {"target_names": [each.name for each in objectives]}
        figures["pareto_front"] = _with(plots.plot_pareto_front, study, names)
    return figures


def _with(plot: Callable[..., Any], study: optuna.Study, given: Mapping[str, Any]) -> Draw:
    return lambda: plot(study, **given)


def _target(index: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: float(trial.values[index])


def _loss(index: int, objective: Objective) -> Callable[[FrozenTrial], float]:
    """Returns the objective such that less is better, as importances take it."""
    sign = -1.0 if objective.goal is Goal.maximize else 1.0
    return lambda trial: sign * float(trial.values[index])


def _comparable(study: optuna.Study) -> bool:
    """Whether two trials that finished differ in a value and in an objective."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return (
        len({str(trial.params) for trial in complete}) > 1
        and len({str(trial.values) for trial in complete}) > 1
    )


def _ordered(values: Collection[_Value]) -> list[_Value]:
    """Returns numbers in their order, and what is not all numbers as it comes."""
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        return sorted(values, key=float)
    return list(values)


def _value(text: str) -> _Value:
    """Returns a swept value as what it is, so that numbers are drawn in their order."""
    with contextlib.suppress(ValueError):
        # YAML's numbers need a point before an exponent.
        number = float(text)
        if math.isfinite(number) and not text.lstrip("+-").isdecimal():
            return number
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return found if isinstance(found, bool | int | float | str) else text


# Okabe and Ito's colours, told apart by colour-blind eyes too; yellow is too pale for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
MOST = len(_COLOURS)
"""More bands than these cannot be told apart."""


def draw_bands(
    found: Sequence[Band],
    objective: Objective,
    path: Path,
    repeated_over: Sequence[str],
    threshold: float | None = None,
) -> list[Path]:
    """Draws the figure and returns its file; none where there are no curves, or too many.

    Where it cannot be drawn, there is none either, which the log tells: the trials are worth more.

    Args:
      found: from `learning_curves.bands`.
      objective: what the curves show.
      path: where to write it.
      repeated_over: the keys over which a band is the range.
      threshold: drawn as a line; None for none.
    """
    drawn = [band for band in found if band.steps]
    if not 1 <= len(drawn) <= MOST:
        return []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        band_figure(drawn, objective, repeated_over, threshold).savefig(path, dpi=120)
    except Exception as error:  # noqa: BLE001 - of whatever library draws
        logger.warning("The figure %s is left out: %s", path.stem, error)
        return []
    return [path]


def band_figure(
    drawn: Sequence[Band],
    objective: Objective,
    repeated_over: Sequence[str],
    threshold: float | None = None,
) -> Figure:
    """Returns the figure of at most `MOST` bands; the arguments are those of `draw_bands`."""
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for index, band in enumerate(drawn):
        colour = _COLOURS[index]
        axes.plot(
            band.steps,
            band.mean,
            color=colour,
            linestyle=_STYLES[index % len(_STYLES)],
            marker=_MARKERS[index],
            markersize=4,
            label=band.label or "all trials",
        )
        if len(band.curves) > 1:
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, lw=0)
    if threshold is not None:
        axes.axhline(threshold, color="0.4", linewidth=0.9, linestyle=(0, (4, 4)), zorder=0)
        axes.annotate(
            f"{threshold:g}",
            (0.0, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color="0.4",
            fontsize="small",
        )
    axes.set_xlabel("global step")
    axes.set_ylabel(objective.name)
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
    axes.set_title(_title(drawn, objective, repeated_over), fontsize="medium", loc="left")
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Below the axes, where no curve is hidden whatever its shape.
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    show_literally(figure)
    return figure


def _title(drawn: Sequence[Band], objective: Objective, repeated_over: Sequence[str]) -> str:
    counts = sorted({len(band.curves) for band in drawn})
    if counts == [1]:
        return f"{objective.name} of each trial"
    trials = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{objective.name}: mean and range of {trials} trials each ({', '.join(repeated_over)})"
