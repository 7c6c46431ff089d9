"""The figure of learning curves: a mean line with its range for each band."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from runner.sweeps.learning_curves import Band
from runner.sweeps.literal_text import show_literally
from runner.sweeps.objective import Objective

logger = logging.getLogger(__name__)

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
