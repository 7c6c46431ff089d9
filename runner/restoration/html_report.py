"""Writes a restoration plan as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from string import Template

from runner.errors import Problem
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import Row, VariablePlacement, bytes_of, report_rows, summary

# Hues that also those tell apart who see few colours; initializers are grey.
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --line: #d0d4da; --soft: #f3f5f7; --dim: #59616b;
  --bad: #b3261e; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #1d2229; --dim: #a3acb8; --bad: #ff8a80; --good: #7ddc9f; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 90rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
code, td { overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--dim); }
.bar { display: flex; height: 1.6rem; overflow: hidden; border-radius: .3rem;
  background: var(--soft); }
.bar span { min-width: 2px; }
ul.legend { list-style: none; padding: 0; margin: .6rem 0 0; }
ul.legend li { overflow-wrap: anywhere; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .4rem; vertical-align: -1px; }
.problem { border-left: .25rem solid var(--bad); background: var(--soft); padding: .5rem .8rem;
  margin: .5rem 0; overflow-wrap: anywhere; }
.problem dl { margin: .3rem 0 0; display: grid; grid-template-columns: max-content 1fr;
  gap: 0 .8rem; }
.problem dt { color: var(--dim); } .problem dd { margin: 0; min-width: 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.name { font-family: ui-monospace, monospace; min-width: 18rem; }
td.short { white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; } th.number { text-align: right; }
@media (max-width: 50rem) {
  body { padding: .8rem; }
  thead { display: none; }
  tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  td { display: grid; grid-template-columns: 6.5rem minmax(0, 1fr); border: 0; padding: .1rem 0; }
  td.name { min-width: 0; }
  td.number { text-align: left; }
  td:empty { display: none; }
  td::before { content: attr(data-label); color: var(--dim); font-family: system-ui, sans-serif; }
}
</style>
</head>
<body>
<h1>$title</h1>
<p class="$verdict_class">$verdict</p>
<h2>Bytes by source</h2>
<div class="bar" role="img" aria-label="$bar_label">$bar</div>
<ul class="legend">$legend</ul>
$problems
$placement
<h2>Variables</h2>
<table>
<thead><tr><th>variable</th><th>shape</th><th>dtype</th><th class="number">bytes</th>
<th>value from</th><th>trainable</th><th>notes</th></tr></thead>
<tbody>
$rows
</tbody>
</table>
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
    """Returns the page: a bar of bytes per source, the problems, the variables, what is unused.

    It needs no other file and no network, and adapts to narrow windows and dark screens.

    Args:
      plan: the plan.
      title: its title, e.g. the experiment's name.
      full: whether every variable has a row of its own; otherwise numbered layers that agree share
        one.
      placement: where the variables are in a cluster, which a bar and a list of each task show.
    """
    colours = {name: _HUES[index % len(_HUES)] for index, name in enumerate(plan.sources)}
    shown = report_rows(plan, full=full)
    sizes = _bytes_by_source(plan, shown)
    count = len(plan.problems)
    page = _PAGE.substitute(
        title=escape(title),
        verdict_class="bad" if count else "good",
        verdict=f"{count} problem{'s' if count > 1 else ''}: nothing would be restored"
        if count
        else "No problems: the plan can be carried out",
        bar_label=escape(
            ", ".join(f"{name or 'initializers'}: {_size(size)}" for name, size in sizes.items())
        ),
        bar="".join(_segments(sizes, colours)),
        legend="".join(_legend(plan, sizes, colours)),
        problems=_problems(plan.problems),
        placement=_placement(plan, placement) if placement is not None else "",
        rows="\n".join(_row(row) for row in shown),
        unused="".join(_unused(plan)),
        summary="".join(
            f"<li>{escape(line)}</li>"
            for line in (*summary(plan), *(f"note: {note}" for note in plan.notes))
        ),
    )
    # The same page in every encoding, so that a redirected standard output keeps it whole.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _bytes_by_source(plan: RestorationPlan, shown: Sequence[Row]) -> dict[str, int]:
    """Returns scaffold -> bytes of the variables restored from it; the rest under no name."""
    sizes = dict.fromkeys(plan.sources, 0)
    for row in shown:
        sizes[row.source] = sizes.get(row.source, 0) + row.bytes
    return sizes


def _segments(sizes: dict[str, int], colours: dict[str, str]) -> Iterator[str]:
    for name, size in sizes.items():
        if size:
            label = escape(f"{name or 'initializers'}: {_size(size)}")
            yield (
                f'<span style="flex: {size} 0 0; background: {colours.get(name, "#8b949e")}"'
                f' title="{label}"></span>'
            )


def _legend(plan: RestorationPlan, sizes: dict[str, int], colours: dict[str, str]) -> Iterator[str]:
    for name, size in sizes.items():
        source = plan.sources.get(name)
        step = "" if source is None or source.step is None else f" @ step {source.step}"
        without = "the checkpoint cannot be used" if name in plan.unusable else "no checkpoint"
        where = f"{source.path}{step}" if source else without if name else ""
        digest = f"{source.format} {source.digest}".strip() if source else ""
        yield (
            f'<li><span class="key" style="background: {colours.get(name, "#8b949e")}"></span>'
            f"<b>{escape(name) or 'initializers'}</b> {_size(size)} "
            f'<span class="dim">{escape(where)} {escape(digest)}</span></li>'
        )


def _problems(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    return "<h2>Problems</h2>" + "".join(
        f'<div class="problem"><b>{escape(each.state)}</b><dl>'
        + "".join(
            f"<dt>{label}</dt><dd>{escape(value)}</dd>"
            for label, value in (
                ("cause", each.cause),
                ("remedy", each.remedy),
                ("choices", ", ".join(each.choices)),
            )
            if value
        )
        + "</dl></div>"
        for each in problems
    )


def _row(row: Row) -> str:
    cells = (
        ("variable", "name", row.variable),
        ("shape", "short", row.shape if row.count == 1 else f"{row.count} x ({row.shape})"),
        ("dtype", "short", row.dtype),
        ("bytes", "number", _size(row.bytes)),
        ("value from", "good" if row.restored else "dim", row.origin),
        ("trainable", "", row.training),
        ("notes", "", row.notes),
    )
    return (
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-label="{label}">{escape(value)}</td>'
            for label, kind, value in cells
        )
        + "</tr>"
    )


def _placement(plan: RestorationPlan, placement: VariablePlacement) -> str:
    shares = placement.shares(plan)
    sizes = {each.device: each.bytes for each in shares}
    colours = {each: _HUES[index % len(_HUES)] for index, each in enumerate(sizes)}
    label = escape(", ".join(f"{device}: {_size(size)}" for device, size in sizes.items()))
    items = "".join(
        f'<li><span class="key" style="background: {colours[each.device]}"></span>'
        f"<b>{escape(each.device)}</b> {_size(each.bytes)}"
        f"<details><summary>{each.count}</summary><ul>"
        + "".join(
            f"<li><code>{escape(held.name)}</code> {_size(bytes_of(held))}</li>"
            for held in each.variables
        )
        + "</ul></details></li>"
        for each in shares
    )
    return (
        f"<h2>{escape(placement.title.capitalize())}</h2>"
        f'<div class="bar" role="img" aria-label="{label}">'
        f"{''.join(_segments(sizes, colours))}</div>"
        f'<ul class="legend">{items}</ul>'
    )


def _unused(plan: RestorationPlan) -> Iterator[str]:
    for scaffold, names in plan.unused.items():
        if names:
            items = "".join(f"<li><code>{escape(name)}</code></li>" for name in names)
            yield (
                f"<details><summary>{len(names):,} unused tensors in {escape(scaffold)}</summary>"
                f"<ul>{items}</ul></details>"
            )


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
