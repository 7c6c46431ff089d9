"""The figures of a sweep: learning curves in bands by Matplotlib, all others by Optuna."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from runner.config.schema import SweepConfig
from runner.sweeps.bands import Band
from runner.sweeps.objectives import Objective
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from runner.training.figures import COLOURS, Plot

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

_Value = bool | int | float | str
_MARKERS = "osD^vPX"
MOST = len(COLOURS)
"""The number of bands that readers can still distinguish."""


def band_plots(
    bands: Sequence[Band], objective: Objective, settings: SweepConfig
) -> dict[str, Plot]:
    """Returns the figure of the bands, unless there are no curves, or too many."""
    curves = [band for band in bands if band.steps]
    if not 1 <= len(curves) <= MOST:
        return {}
    return {"learning_curves": partial(plot_bands, curves, objective, settings)}


def plot_bands(bands: Sequence[Band], objective: Objective, settings: SweepConfig) -> Axes:
    """Plots at most `MOST` bands in a new figure of Pyplot's."""
    figure, axes = pyplot.subplots(figsize=(8.0, 4.8), layout="constrained")
    for band, colour, marker in zip(bands, COLOURS, _MARKERS, strict=False):
        label = band.label or "all trials"
        axes.plot(band.steps, band.mean, color=colour, marker=marker, markersize=4, label=label)
        if len(band.curves) > 1:
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, lw=0)
    if settings.threshold is not None:
        label = f"threshold {settings.threshold:g}"
        axes.axhline(settings.threshold, color="0.4", linewidth=0.9, linestyle="--", label=label)
    axes.set_xlabel("global step")
    axes.set_ylabel(objective.name)
    axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
    axes.set_title(_title(bands, objective, settings.bands), fontsize="medium", loc="left")
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # Below the axes, where it hides no curve.
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return axes


def _title(bands: Sequence[Band], objective: Objective, repeated_over: Sequence[str]) -> str:
    counts = sorted({len(band.curves) for band in bands})
    if counts == [1]:
        return f"{objective.name} of each trial"
    trials = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{objective.name}: mean and range of {trials} trials each ({', '.join(repeated_over)})"


def study_of(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> optuna.Study:
    """Builds a study in memory from trials that have none, as in a grid.

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
    distributions = {
        key: CategoricalDistribution(_numbers_first(values)) for key, values in choices.items()
    }
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


def study_plots(study: optuna.Study, objectives: Sequence[Objective]) -> dict[str, Plot]:
    """Returns Optuna's figures, by name; fewer where the trials do not differ."""
    from optuna.visualization import matplotlib as plots

    if not _complete(study):
        return {}
    several = len(objectives) > 1
    figures: dict[str, Plot] = {}
    for index, objective in enumerate(objectives):
        arguments: dict[str, Any] = {"study": study, "target_name": objective.name}
        # Optuna draws best values so far, and pruned trials, only without a target.
        if several:
            arguments["target"] = _target(index)
        end = f"_{objective.name.rpartition('/')[2]}" if several else ""
        history = partial(plots.plot_optimization_history, **arguments)
        figures[f"objective_over_trials{end}"] = history
        if _comparable(study):
            figures[f"slices{end}"] = partial(plots.plot_slice, **arguments)
        # With one key, parallel coordinates repeat the slice plot, and its importance is 1.
        if _comparable(study) and any(len(trial.params) > 1 for trial in _complete(study)):
            parallel = partial(plots.plot_parallel_coordinate, **arguments)
            figures[f"parallel_coordinates{end}"] = parallel
            arguments["target"] = _loss(index, objective)
            figures[f"importances{end}"] = partial(plots.plot_param_importances, **arguments)
    if any(trial.intermediate_values for trial in study.get_trials(deepcopy=False)):
        figures["learning_curves"] = partial(plots.plot_intermediate_values, study)
    if len(objectives) in (2, 3):
        names = [objective.name for objective in objectives]
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
        len(set(map(str, column))) > 1
        for column in ([trial.params for trial in trials], [trial.values for trial in trials])
    )


def _numbers_first(values: Collection[_Value]) -> list[_Value]:
    """Returns numbers in ascending order, and then other values in their order."""
    return sorted(values, key=lambda value: math.inf if isinstance(value, str) else value)


def _value(string: str) -> _Value:
    """Returns a swept value with its type, so that numbers are drawn in ascending order."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(string)
            return number if math.isfinite(number) else string
    return {"true": True, "false": False}.get(string.lower(), string)
