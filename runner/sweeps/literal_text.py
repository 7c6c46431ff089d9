"""The texts of a figure as they are: Matplotlib takes what stands between two `$` for a formula."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter


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
