"""A plan as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template

from runner.console import plural, sized
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import Row, at_step, kept_value, report_rows, summary
from runner.restoration.variables import WARM_STARTED, VariableSpec

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
th, td { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
li, pre, td { overflow-wrap: anywhere; } td:first-child { font-family: monospace; }
td:nth-child(2), td:nth-child(3), td:nth-child(5) { white-space: nowrap; }
td:nth-child(4) { min-width: 7rem; }
summary { cursor: pointer; padding: .3rem 0; } input { font: inherit; width: min(95%, 24rem); }
@media (max-width: 40rem) { th:nth-child(3), td:nth-child(3) { display: none; } }
</style>
</head>
<body>
<h1>$title</h1>
<p class="$verdict_class">$verdict</p>
<ul>$summary</ul>
$problems
<h2>Bytes of the model by source</h2>
$sources
$divisions
<h2>Variables</h2>
<p><input type="search" placeholder="Search in names and sources" aria-label="Search"></p>
$groups
$unused
<script>
const groups = [...document.querySelectorAll(".group")].map((group) => [group, group.open]);
document.querySelector("input").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const [group, open] of groups) {
    let found = false;
    for (const row of group.querySelectorAll("tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      found ||= !row.hidden;
    }
    group.hidden = !found;
    group.open = wanted ? found : open;
  }
});
</script>
</body>
</html>
""")


def html(
    plan: RestorationPlan,
    title: str = "Restoration plan",
    *,
    divisions: Mapping[str, Mapping[str, Sequence[VariableSpec]]] | None = None,
) -> str:
    """Returns the page: summary, problems, a bar of bytes by source, variables, what is unused.

    It needs no other file and no network. The variables of each scaffold are a group, and so is
    each class of state that is not the model's, which is folded. `divisions` are shown as bars too:
    heading -> part, such as a device -> its variables.
    """
    count = len(plan.problems)
    page = _PAGE.substitute(
        title=escape(title),
        verdict_class="bad" if count else "good",
        verdict=f"{plural(count, 'problem')}: nothing would be restored"
        if count
        else "No problems: the plan can be carried out",
        problems=_elements("h2", ["Problems"] * bool(count))
        + _elements("pre", map(str, plan.problems)),
        sources=_sources(plan),
        divisions="\n".join(_division(title, parts) for title, parts in (divisions or {}).items()),
        groups="\n".join(_groups(report_rows(plan, full=True))),
        unused="".join(
            _details(f"{plural(len(names), 'unused tensor')} in {scaffold}", names)
            for scaffold, names in plan.unused.items()
            if names
        ),
        summary=_elements("li", [*summary(plan), *(f"note: {note}" for note in plan.notes)]),
    )
    # ASCII is the same in every encoding, so that a redirected standard output keeps the page.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


_COLUMNS = ("variable", "shape", "bytes", "value from", "training", "notes")


def _groups(rows: Sequence[Row]) -> Iterable[str]:
    """Yields the groups as HTML, the model's first."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        folded = row.state not in WARM_STARTED
        name = row.state.value if folded else row.scaffold or "no scaffold"
        groups.setdefault((folded, name), []).append(row)
    for (folded, name), group in sorted(groups.items(), key=lambda item: item[0][0]):
        title = plural(len(group), name) if folded else f"{name}: {plural(len(group), 'variable')}"
        size = sized(sum(row.bytes for row in group))
        lines = []
        for row in group:
            cells = (row.variable, row.shape, sized(row.bytes), row.origin, row.training, row.notes)
            dim = "" if row.source else ' class="dim"'
            lines.append(f"<tr{dim}>{_elements('td', cells)}</tr>")
        body = "\n".join(lines)
        yield (
            f'<details class="group"{" open" * (not folded)}>'
            f"<summary>{escape(title)}, {size}</summary>"
            f'<div class="wide"><table>\n<thead><tr>{_elements("th", _COLUMNS)}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div></details>"
        )


def _sources(plan: RestorationPlan) -> str:
    rest = kept_value(plan).removeprefix("from ")
    sizes = {**dict.fromkeys(plan.sources, 0), rest: 0}
    for assignment in plan.assignments:
        if assignment.variable.state in WARM_STARTED:
            origin = assignment.pieces[0].source if assignment.pieces else rest
            sizes[origin] += assignment.variable.tensor.bytes
    texts = {rest: ""}
    for name, source in plan.sources.items():
        if source is None:
            bad = name in plan.unusable
            texts[name] = "the checkpoint cannot be used" if bad else "no checkpoint"
        else:
            path = f"{source.path}{at_step(source)}"
            texts[name] = escape(" ".join(filter(None, (path, source.format, source.digest))))
    return _bar(sizes, texts, rest)


def _division(title: str, parts: Mapping[str, Sequence[VariableSpec]]) -> str:
    sizes, texts = {}, {}
    for part, variables in parts.items():
        sizes[part] = sum(variable.tensor.bytes for variable in variables)
        names = [f"{variable.name} {sized(variable.tensor.bytes)}" for variable in variables]
        texts[part] = _details(plural(len(variables), "variable"), names)
    return f"<h2>{escape(title)}</h2>{_bar(sizes, texts)}"


def _bar(sizes: Mapping[str, int], texts: Mapping[str, str], rest: str = "") -> str:
    """Returns a bar of the sizes, `rest` in grey, and a legend with what is in HTML in `texts`."""
    hues = {name: _HUES[at % len(_HUES)] for at, name in enumerate(sizes)} | {rest: _GREY}
    label = escape(", ".join(f"{name}: {sized(size)}" for name, size in sizes.items()))
    segments = "".join(
        f'<span style="flex: {size} 0 0; background: {hues[name]}" title="{escape(name)}"></span>'
        for name, size in sizes.items()
        if size
    )
    legend = "".join(
        f'<li><span class="key" style="background: {hues[name]}"></span><b>{escape(name)}</b> '
        f"{sized(size)} {texts[name]}</li>"
        for name, size in sizes.items()
    )
    return (
        f'<div class="bar" role="img" aria-label="{label}">{segments}</div>'
        f'<ul class="legend">{legend}</ul>'
    )


def _details(title: str, names: Iterable[str]) -> str:
    items = _elements("li", names)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>"


def _elements(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
