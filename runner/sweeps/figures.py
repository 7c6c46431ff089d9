"""The figures of a sweep: learning curves in bands by Matplotlib, all others by Optuna."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, MaxNLocator

from runner.config.schema import SweepConfig
from runner.sweeps.objectives import Objective
from runner.sweeps.results import Band
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

_Value = bool | int | float | str
# Plots in a figure of Pyplot's, which is then the current one.
Plot = Callable[[], object]

# Okabe and Ito's colours, which colour-blind readers distinguish; yellow is too pale for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
MOST = len(_COLOURS)
"""More bands than these cannot be distinguished."""


def show_literally(figure: Figure) -> None:
    """Shows a figure's texts as they are: Matplotlib takes what is between two `$` for a formula.

    They contain users' names and values. The numbers along logarithmic axes are Matplotlib's own
    formulas, and remain so.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                for label in axis.get_ticklabels(which="both"):
                    label.set_parse_math(True)


def draw(plots: Mapping[str, Plot], folder: Path) -> list[Path]:
    """Draws figures, by name, and returns their files.

    One that cannot be drawn is left out, with a warning: the trials are worth more.
    """
    matplotlib.use("Agg")
    files = []
    for name, plot in plots.items():
        path = folder / f"{name}.png"
        # Optuna's figures have the size of Pyplot's, and change its style.
        style = matplotlib.rc_context({"figure.figsize": (10, 6)})
        with warnings.catch_warnings(), style:
            warnings.simplefilter("ignore")  # The plots' own, about few trials.
            try:
                folder.mkdir(parents=True, exist_ok=True)
                plot()
                figure = pyplot.gcf()
                show_literally(figure)
                figure.savefig(path, bbox_inches="tight", dpi=120)
            except Exception as error:  # noqa: BLE001 - of whatever library draws
                logger.warning("The figure %s is left out: %s", name, error)
                continue
            finally:
                pyplot.close("all")
        files.append(path)
    return files


def band_plots(
    found: Sequence[Band], objective: Objective, settings: SweepConfig
) -> dict[str, Plot]:
    """Returns the figure of the bands; none where there are no curves, or too many."""
    drawn = [band for band in found if band.steps]
    if not 1 <= len(drawn) <= MOST:
        return {}
    return {"learning_curves": partial(plot_bands, drawn, objective, settings)}


def plot_bands(drawn: Sequence[Band], objective: Objective, settings: SweepConfig) -> Axes:
    """Plots at most `MOST` bands in a new figure of Pyplot's."""
    figure, axes = pyplot.subplots(figsize=(8.0, 4.8), layout="constrained")
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
    if settings.threshold is not None:
        axes.axhline(settings.threshold, color="0.4", linewidth=0.9, linestyle="--", zorder=0)
        axes.annotate(
            f"{settings.threshold:g}",
            (0.0, settings.threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color="0.4",
            fontsize="small",
        )
    axes.set_xlabel("global step")
    axes.set_ylabel(objective.name)
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
    axes.set_title(_title(drawn, objective, settings.bands), fontsize="medium", loc="left")
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Below the axes, where it hides no curve.
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return axes


def _title(drawn: Sequence[Band], objective: Objective, repeated_over: Sequence[str]) -> str:
    counts = sorted({len(band.curves) for band in drawn})
    if counts == [1]:
        return f"{objective.name} of each trial"
    trials = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{objective.name}: mean and range of {trials} trials each ({', '.join(repeated_over)})"


def study_of(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> optuna.Study:
    """Returns a study in memory of trials that have none, such as those of a grid.

    Raises:
      ImportError: Optuna is not installed.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState

    # Its own log would report each study on the screen.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[objective.goal.value for objective in objectives])
    choices: dict[str, dict[_Value, None]] = {}
    for trial in trials:
        for key, value in trial.values.items():
            choices.setdefault(key, {})[_value(value)] = None
    distributions = {key: CategoricalDistribution(_ordered(each)) for key, each in choices.items()}
    for trial in trials:
        values = [objective.of(trial) for objective in objectives]
        known = [value for value in values if value is not None and not math.isnan(value)]
        complete = trial.status is Status.FINISHED and len(known) == len(objectives)
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE if complete else TrialState.FAIL,
                values=known if complete else None,
                params={key: _value(value) for key, value in trial.values.items()},
                distributions={key: distributions[key] for key in trial.values},
                intermediate_values=dict(trial.curve) if len(objectives) == 1 else {},
            )
        )
    return study


def importances(
    study: optuna.Study, objectives: Sequence[Objective]
) -> dict[str, dict[str, float]]:
    """Returns objective -> key -> its share of the objective's variance, the largest first.

    Empty where there are too few trials, or nothing differs between them.
    """
    import optuna

    if not _comparable(study):
        return {}
    found = {}
    for index, objective in enumerate(objectives):
        with warnings.catch_warnings():
            # It warns to mind the sign, which `_loss` does.
            warnings.simplefilter("ignore")
            found[objective.name] = dict(
                optuna.importance.get_param_importances(study, target=_loss(index, objective))
            )
    return found


def study_plots(study: optuna.Study, objectives: Sequence[Objective]) -> dict[str, Plot]:
    """Returns Optuna's figures, by name; fewer where the trials do not differ."""
    from optuna.visualization import matplotlib as plots

    if not _complete(study):
        return {}
    several = len(objectives) > 1
    figures: dict[str, Plot] = {}
    for index, objective in enumerate(objectives):
        given: dict[str, Any] = {"study": study, "target_name": objective.name}
        # Optuna draws best values so far, and pruned trials, only without a target.
        if several:
            given["target"] = _target(index)
        end = f"_{objective.name.rpartition('/')[2]}" if several else ""
        history = partial(plots.plot_optimization_history, **given)
        figures[f"objective_over_trials{end}"] = history
        if _comparable(study):
            figures[f"slices{end}"] = partial(plots.plot_slice, **given)
            parallel = partial(plots.plot_parallel_coordinate, **given)
            figures[f"parallel_coordinates{end}"] = parallel
            given["target"] = _loss(index, objective)
            figures[f"importances{end}"] = partial(plots.plot_param_importances, **given)
    if any(trial.intermediate_values for trial in study.get_trials(deepcopy=False)):
        figures["learning_curves"] = partial(plots.plot_intermediate_values, study)
    if len(objectives) in (2, 3):
        names = [each.name for each in objectives]
        figures["pareto_front"] = partial(plots.plot_pareto_front, study, target_names=names)
    return figures


def _target(index: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: float(trial.values[index])


def _loss(index: int, objective: Objective) -> Callable[[FrozenTrial], float]:
    """Returns the objective such that less is better, as importances take it."""
    return lambda trial: objective.loss(float(trial.values[index]))


def _complete(study: optuna.Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _comparable(study: optuna.Study) -> bool:
    """Whether two trials that finished differ in a value and in an objective."""
    trials = _complete(study)
    return all(
        len({str(each) for each in column}) > 1
        for column in ([trial.params for trial in trials], [trial.values for trial in trials])
    )


def _ordered(values: Collection[_Value]) -> list[_Value]:
    """Returns numbers in ascending order, and anything else as it comes."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return sorted(values, key=float)
    return list(values)


def _value(text: str) -> _Value:
    """Returns a swept value with its type, so that numbers are drawn in ascending order."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(text)
            return number if math.isfinite(number) else text
    return {"true": True, "false": False}.get(text.lower(), text)
