from __future__ import annotations

from matplotlib.figure import Figure

from runner.sweeps.figures import show_literally


def test_only_the_numbers_along_a_logarithmic_axis_are_formulas() -> None:
    figure = Figure()
    axes = figure.add_subplot()
    axes.scatter(["$a$", "b"], [0.1, 100.0])
    axes.set_yscale("log")
    axes.set_title("$t$")
    show_literally(figure)
    figure.draw_without_rendering()
    assert [(each.get_text(), each.get_parse_math()) for each in axes.get_xticklabels()] == [
        ("$a$", False),
        ("b", False),
    ]
    assert all(each.get_parse_math() for each in axes.get_yticklabels(which="both"))
    assert not axes.title.get_parse_math()
