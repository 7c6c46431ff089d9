"""A plan as one self-contained HTML page, made from `plan_page.html`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from runner.config.choices import WARM_STARTED
from runner.console import plural, sized
from runner.planning.plan import RestorationPlan
from runner.planning.report import Row, at_step, kept_value, report_rows, summary
from runner.planning.variables import VariableSpec

# Hues that people with colour blindness can distinguish; initializers are grey.
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
_GREY = "#8b949e"
_PAGE = Path(__file__).with_name("plan_page.html")


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
    page = Template(_PAGE.read_text(encoding="utf-8")).substitute(
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
        name = row.state.noun if folded else row.scaffold or "no scaffold"
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
            origin = assignment.source_tensor.source if assignment.source_tensor else rest
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
