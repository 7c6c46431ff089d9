"""A plan as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from string import Template

from runner.restoration.plan import RestorationPlan
from runner.restoration.problems import plural
from runner.restoration.report import VariablePlacement, at_step, report_rows, summary

# Hues that people with colour blindness can distinguish; initializers are grey.
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
_GREY = "#8b949e"

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --line: #8886; --bad: #d0342c; --good: #2a9d5c; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 90rem; padding: 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { opacity: .7; }
.bar { display: flex; height: 1.5rem; } .bar span { min-width: 2px; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
ul { padding-left: 1rem; } ul.legend { list-style: none; padding: 0; }
pre { border-left: .25rem solid var(--bad); padding-left: .8rem; white-space: pre-wrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
li, pre, td { overflow-wrap: anywhere; }
td:nth-child(-n+4) { overflow-wrap: normal; } td:first-child { font-family: monospace; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="$verdict_class">$verdict</p>
$problems
<h2>Bytes by source</h2>
$sources
$placement
<h2>Variables</h2>
<div class="wide"><table>
<thead><tr><th>variable</th><th>shape</th><th>dtype</th><th>bytes</th><th>value from</th>
<th>trainable</th><th>notes</th></tr></thead>
<tbody>
$rows
</tbody>
</table></div>
$unused
<h2>Summary</h2>
<ul>$summary</ul>
</body>
</html>
""")


def html(
    plan: RestorationPlan,
    title: str = "Restoration plan",
    *,
    full: bool = False,
    placement: VariablePlacement | None = None,
) -> str:
    """Returns the page: the problems, a bar of bytes per source, the variables, what is unused.

    It needs no other file and no network.

    Unless `full`, numbered layers that agree share a row.
    """
    count = len(plan.problems)
    rows = []
    for row in report_rows(plan, full=full):
        shape = row.shape if row.count == 1 else f"{row.count} x ({row.shape})"
        cells = [row.variable, shape, row.dtype, _size(row.bytes), row.origin, row.training]
        dim = "" if row.source else ' class="dim"'
        rows.append(f"<tr{dim}>{_each('td', [*cells, row.notes])}</tr>")
    page = _PAGE.substitute(
        title=escape(title),
        verdict_class="bad" if count else "good",
        verdict=f"{plural(count, 'problem')}: nothing would be restored"
        if count
        else "No problems: the plan can be carried out",
        problems=_each("h2", ["Problems"] * bool(count)) + _each("pre", map(str, plan.problems)),
        sources=_sources(plan),
        placement=_placement(plan, placement) if placement else "",
        rows="\n".join(rows),
        unused="".join(
            _details(f"{plural(len(names), 'unused tensor')} in {scaffold}", names)
            for scaffold, names in plan.unused.items()
            if names
        ),
        summary=_each("li", [*summary(plan), *(f"note: {note}" for note in plan.notes)]),
    )
    # ASCII is the same in every encoding, so that a redirected standard output keeps the page.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _sources(plan: RestorationPlan) -> str:
    sizes = {**dict.fromkeys(plan.sources, 0), "": 0}
    for assignment in plan.assignments:
        origin = assignment.pieces[0].source if assignment.pieces else ""
        sizes[origin] += assignment.variable.tensor.bytes
    texts = {"": ""}
    for name, source in plan.sources.items():
        if source is None:
            bad = name in plan.unusable
            texts[name] = "the checkpoint cannot be used" if bad else "no checkpoint"
        else:
            path = f"{source.path}{at_step(source)}"
            texts[name] = " ".join(filter(None, (path, source.format, source.digest)))
    return _bar(
        {name or "initializers": size for name, size in sizes.items()},
        {name or "initializers": escape(text) for name, text in texts.items()},
    )


def _placement(plan: RestorationPlan, placement: VariablePlacement) -> str:
    sizes, texts = {}, {}
    for device, held in placement.by_device(plan).items():
        sizes[device] = sum(each.tensor.bytes for each in held)
        names = [f"{each.name} {_size(each.tensor.bytes)}" for each in held]
        texts[device] = _details(plural(len(held), "variable"), names)
    return f"<h2>{escape(placement.title.capitalize())}</h2>{_bar(sizes, texts)}"


def _bar(sizes: Mapping[str, int], texts: Mapping[str, str]) -> str:
    """Returns a bar of the sizes, and a legend with what is in HTML in `texts`."""
    hues = {name: _HUES[at % len(_HUES)] for at, name in enumerate(sizes)} | {"initializers": _GREY}
    label = escape(", ".join(f"{name}: {_size(size)}" for name, size in sizes.items()))
    segments = "".join(
        f'<span style="flex: {size} 0 0; background: {hues[name]}" title="{escape(name)}"></span>'
        for name, size in sizes.items()
        if size
    )
    legend = "".join(
        f'<li><span class="key" style="background: {hues[name]}"></span><b>{escape(name)}</b> '
        f"{_size(size)} {texts[name]}</li>"
        for name, size in sizes.items()
    )
    return (
        f'<div class="bar" role="img" aria-label="{label}">{segments}</div>'
        f'<ul class="legend">{legend}</ul>'
    )


def _details(title: str, names: Iterable[str]) -> str:
    items = _each("li", names)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>"


def _each(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
