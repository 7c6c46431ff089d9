"""The figures of a run, drawn at its end: learning curves, sources of the weights, proofs."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from runner.console import sized

logger = logging.getLogger(__name__)

# Plots in a figure of Pyplot's, which is then the current one.
Plot = Callable[[], object]

# Okabe and Ito's colours, which colour-blind readers distinguish; yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Prefix of a metric -> its line.
_LINES: dict[str, dict[str, Any]] = {
    "train": {"color": "0.75", "linewidth": 0.9, "label": "training, one step"},
    "train_mean": {"color": COLOURS[0], "marker": "s", "label": "training, mean"},
    "validation": {"color": COLOURS[1], "marker": "o", "label": "validation"},
}
_MOST_PANELS = 6
_MOST_LAYERS = 40
# Kinds of variables that are not the model's.
_NOT_WEIGHTS = ("optimizer slot", "global step", "random state", "moving average")


def draw(plots: Mapping[str, Plot], folder: Path) -> list[Path]:
    """Draws figures, by name, and returns their files.

    A figure that cannot be drawn is left out, with a warning: the results are worth more.
    """
    matplotlib.use("Agg")
    files = []
    for name, plot in plots.items():
        path = folder / f"{name}.png"
        # Optuna's figures have the size of Pyplot's, and change its style.
        style = matplotlib.rc_context({"figure.figsize": (10, 6)})
        with warnings.catch_warnings(), style:
            warnings.simplefilter("ignore")  # The plots' own, about few points.
            try:
                folder.mkdir(parents=True, exist_ok=True)
                plot()
                pyplot.gcf().savefig(path, bbox_inches="tight", dpi=120)
            except Exception as error:  # noqa: BLE001 - of whatever library draws
                logger.warning("The figure %s is left out: %s", name, error)
                continue
            finally:
                pyplot.close("all")
        files.append(path)
    return files


def run_plots(
    history: Mapping[int, Mapping[str, float]],
    plan: Mapping[str, Any] | None,
    *,
    best: int | None = None,
) -> dict[str, Plot]:
    """Returns the figures of a run.

    Args:
      history: step -> metric -> value.
      plan: the plan of its start, as `plan.json` has it; None if it has none.
      best: the step of the best checkpoint.
    """
    plots: dict[str, Plot] = {}
    names = {name for values in history.values() for name in values}
    shown = [name for name in _metrics(names) if f"validation/{name}" in names]
    shown = (shown or _metrics(names))[:_MOST_PANELS]
    if len(history) > 1 and shown:
        plots["learning_curves"] = partial(_plot_curves, history, shown, best)
    if plan is not None and any(source is not None for source in plan["sources"].values()):
        plots["sources_of_weights"] = partial(_plot_sources, plan)
    for proof in plan["proofs"] if plan is not None else ():
        if proof["layers"]:
            name = proof["scaffold"] or "model"
            plots[f"proof_{name}"] = partial(_plot_proof, proof, name)
    return plots


def _metrics(names: Iterable[str]) -> list[str]:
    """Returns the metrics of training and evaluation, without their prefixes, the loss first."""
    parts = (name.partition("/") for name in names)
    metrics = {metric for prefix, _, metric in parts if prefix in _LINES}
    return sorted(metrics, key=lambda name: (name != "loss", name))


def _plot_curves(
    history: Mapping[int, Mapping[str, float]], metrics: list[str], best: int | None
) -> None:
    columns = min(len(metrics), 2)
    rows = -(-len(metrics) // columns)
    size = (5.0 * columns, 3.4 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    panels = list(grid.flat)
    for metric, axes in zip(metrics, panels, strict=False):
        for prefix, style in _LINES.items():
            name = f"{prefix}/{metric}"
            points = [(step, values[name]) for step, values in history.items() if name in values]
            if points:
                axes.plot(*zip(*points, strict=True), markersize=3, **style)
        if best is not None:
            axes.axvline(best, color="0.4", linewidth=0.9, linestyle="--", label=f"best: {best}")
        axes.set_title(metric, fontsize="medium", loc="left")
        axes.set_xlabel("global step")
        axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
        _tidy(axes, "both")
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    labels = {
        label: line
        for axes in panels
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        labels.values(),
        labels,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize="small",
    )


def _plot_sources(plan: Mapping[str, Any]) -> None:
    """Plots a bar of bytes for each source, and one for the initializers."""
    sizes: Counter[str] = Counter()
    for variable in plan["variables"]:
        if variable["state"] not in _NOT_WEIGHTS:
            source_tensor = variable["source_tensor"]
            source = source_tensor["source"] if source_tensor else variable["initializer"] or "kept"
            sizes[source if source_tensor else f"{source} (initializer)"] += variable["bytes"]
    whole = sum(sizes.values())
    names = [name for name, _ in sizes.most_common()]
    _, axes = pyplot.subplots(figsize=(8.0, 1.2 + 0.4 * len(names)), layout="constrained")
    restored = [name in plan["sources"] for name in names]
    colours = [COLOURS[0] if is_restored else "0.75" for is_restored in restored]
    bars = axes.barh(names, [sizes[name] for name in names], color=colours)
    labels = [f" {sized(sizes[name])}, {sizes[name] / whole:.1%}" for name in names]
    axes.bar_label(bars, labels, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: sized(value))
    # Rounded down, as in the plan: 100 % means all.
    permille = sum(sizes[name] for name in names if name in plan["sources"]) * 1000 // whole
    title = f"{permille / 10} % of {sized(whole)} from checkpoints"
    axes.set_title(title, fontsize="medium", loc="left")
    _tidy(axes, "x")


def _plot_proof(proof: Mapping[str, Any], name: str) -> None:
    """Plots the relative differences of the layers, in the order of the source's modules."""
    layers = proof["layers"]
    # Of a deep model the largest, which decide.
    largest = sorted(layers, key=_relative, reverse=True)[:_MOST_LAYERS]
    shown = [layer for layer in layers if layer in largest]
    _, axes = pyplot.subplots(figsize=(8.0, 1.4 + 0.22 * len(shown)), layout="constrained")
    tolerance = proof["tolerance"]
    least = tolerance / 1e6
    colours = [COLOURS[0] if layer["agrees"] else COLOURS[1] for layer in shown]
    places = range(len(shown))
    finite = [value for value in map(_relative, shown) if value != float("inf")]
    most = 10 * max(tolerance, *finite, 0.0)  # Stands for infinity.
    widths = [min(max(_relative(layer), least), most) for layer in shown]
    axes.barh(places, widths, color=colours)
    axes.set_yticks(places, [layer["layer"] for layer in shown], fontsize="small")
    axes.axvline(tolerance, color="0.4", linewidth=0.9, linestyle="--", label="tolerance")
    axes.set_xscale("log")
    axes.set_xlim(left=least)
    axes.invert_yaxis()
    axes.set_xlabel("largest difference, relative to the largest value")
    verdict = "computes what its source does" if proof["agrees"] else "differs from its source"
    which = "" if len(shown) == len(layers) else f"; the {len(shown)} largest of {len(layers)}"
    axes.set_title(f"{name} {verdict}{which}", fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small")
    _tidy(axes, "x")


def _relative(layer: Mapping[str, Any]) -> float:
    # Null stands for infinity.
    return float("inf") if layer["relative"] is None else float(layer["relative"])


def _tidy(axes: Axes, grid: Any) -> None:
    axes.grid(color="0.9", linewidth=0.8, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
