"""A terminal gets tables in colour, anything else plain text."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from runner.console import Listing, NotebookScreen, Screen, as_html, screen_of_process, some_of

PLAIN = "a line of many more than twenty characters\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_the_table_and_a_file_the_plain_text(terminal: bool) -> None:
    file = io.StringIO()
    screen = Screen(Console(file=file, force_terminal=terminal, width=20, highlight=False))
    assert screen.is_terminal is terminal
    line = "[bold]a line[/] of more than [20] characters, 0.5, 'quotes' and :x:"
    screen.line(line)
    assert file.getvalue() == f"{line}\n", "it is neither folded nor interpreted"
    file.truncate(0)
    file.seek(0)
    table = Table()
    table.add_column("variable")
    screen.show(table, PLAIN)
    assert ("┏" in file.getvalue()) is terminal
    assert (file.getvalue() == PLAIN) is not terminal


def test_it_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().line("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_notebook_gets_html() -> None:
    listing = Listing(("name", "value"), [("a<b", Text("1", style="green")), ("", "2")])
    html = as_html(Group(Text("first\nsecond"), listing, Text("bad", style="red")))
    plain = re.sub("<.*?>", "", html)
    assert [line.split() for line in plain.splitlines() if line.strip(" ─")] == [
        *(["first"], ["second"], ["name", "value"]),
        *(["a&lt;b", "1"], ["2"], ["bad"]),
    ]
    for colour, text in (("008000", "1 "), ("800000", "bad<")):
        assert re.search(f'<span style="color: #{colour}[^>]*>{text}', html)
    wide = as_html(Listing(("name", "value"), [("a" * 500, "b" * 500)]))
    assert f"{'a' * 500}  {'b' * 500}" in wide


class Shown:
    """What a notebook shows, in place of IPython's display."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.html: list[str] = []
        shell = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        module = SimpleNamespace(HTML=lambda html: html, display=self.display)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, html: str, *, display_id: bool) -> Any:
        assert display_id
        self.html.append(html)
        return SimpleNamespace(update=lambda html: self.html.append(html))


def test_the_screen_of_a_kernel_is_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type(screen_of_process()) is Screen
    shown = Shown(monkeypatch)
    screen = screen_of_process()
    assert isinstance(screen, NotebookScreen)
    screen.show(Listing(("name",), [("a",)]), PLAIN)
    replace = screen.live("<b>1</b>")
    replace("<b>2</b>")
    assert shown.html[0] == as_html(Listing(("name",), [("a",)]))
    assert shown.html[1:] == ["<b>1</b>", "<b>2</b>"]
    screen.line("a line")
    assert capsys.readouterr().out == "a line\n"


def test_some_of_many_are_named_and_the_others_counted() -> None:
    names = [f"v{number}" for number in range(1_003)]
    assert some_of(names[:3], 3) == "v0, v1, v2"
    assert some_of(names, 3) == "v0, v1, v2 and 1,000 more"
    assert some_of(names, 2, "; ") == "v0; v1; and 1,001 more"
