"""The plan as one page that needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from runner.restoration.html_report import html
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import VariablePlacement
from tests.tiny.plans import checkpoint, plan, scaffold, variable

EVIL = "<script>alert('1')</script>&\"ä"
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Collects what a page holds, and checks that its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.elements
            if name == tag and attributes.items() <= found.items()
        ]


def example(evil: str = EVIL, broken: bool = False) -> RestorationPlan:
    layers = [f"body/layer_{number}/kernel" for number in range(12)]
    return plan(
        [*map(variable, layers), variable(f"head/{evil}"), variable("other")],
        {
            "body": scaffold("body/*", *(["no<b>"] if broken else [])),
            evil: scaffold("head/*", learning_rate_multiplier=0.5),
        },
        {
            "body": checkpoint(*layers, f"unused{evil}", path=f"/x/{evil}"),
            evil: checkpoint(f"head/{evil}"),
        },
    )


def test_everything_is_escaped() -> None:
    page = Page(html(example(broken=True), f"title {EVIL}"))
    assert not page.all("script")
    assert not page.all("b", **{"class": "x"})
    assert page.text.count(EVIL) >= 6  # Title, heading, legend, row, unused tensor, summary.
    assert "no<b>" in page.text


def test_the_page_needs_nothing_else() -> None:
    text = html(example())
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag in ("script", "link", "img", "iframe")]
    assert not [found for _, found in page.elements if "src" in found or "href" in found]
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    assert text.isascii()
    assert page.all("meta", name="viewport")
    assert "prefers-color-scheme: dark" in text
    assert "@media (max-width" in text


def test_the_bar_shows_the_bytes_of_each_source() -> None:
    page = Page(html(example("head")))
    widths = [
        re.findall(r"flex: (\d+) 0 0", str(found.get("style")))
        for found in page.all("span")
        if "flex" in str(found.get("style"))
    ]
    assert widths == [["288"], ["24"], ["24"]]
    (bar,) = page.all("div", role="img")
    assert bar["aria-label"] == "body: 288 B, head: 24 B, initializers: 24 B"


def test_rows_collapse_unless_all_are_asked_for() -> None:
    assert len(Page(html(example())).all("tr")) == 1 + 3
    page = Page(html(example(), full=True))
    assert len(page.all("tr")) == 1 + 14
    assert page.all("td", **{"data-label": "value from"})


def test_a_verdict_and_the_problems() -> None:
    assert "No problems: the plan can be carried out" in Page(html(example())).text
    page = Page(html(example(broken=True)))
    assert "1 problem: nothing would be restored" in page.text
    assert "scaffolds.body.variables: 'no<b>' matches no variable of the model" in page.text
    assert "patterns match whole names" in page.text
    assert len(page.all("div", **{"class": "problem"})) == 1


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((), "4 B"), ((250,), "1 kB"), ((1500, 1000), "6 MB"), ((10**6, 10**6), "4 TB")],
)
def test_sizes(shape: tuple[int, ...], shown: str) -> None:
    made = plan([variable("w", shape)], {"net": scaffold()}, {"net": None})
    assert shown in Page(html(made)).text


def test_each_task_of_a_cluster_is_shown_with_what_it_holds() -> None:
    made = plan([variable(f"head/{EVIL}"), variable("other", (2,))], {}, {})
    devices = {f"head/{EVIL}": "/job:ps/task:1", "other": "/job:ps/task:0"}
    page = Page(html(made, placement=VariablePlacement("by_size", devices)))
    assert "Placement on the cluster (by_size)" in page.text
    (bar,) = (each for each in page.all("div", role="img") if "ps" in str(each["aria-label"]))
    assert bar["aria-label"] == "/job:ps/task:0: 8 B, /job:ps/task:1: 24 B"
    assert f"/job:ps/task:1 24 B1 variablehead/{EVIL} 24 B" in page.text
    assert "Placement" not in html(made)
