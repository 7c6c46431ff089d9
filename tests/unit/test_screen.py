"""A terminal gets tables in colour, anything else plain text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from runner.console import Screen


def screen(*, terminal: bool) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=20, highlight=False)
    return Screen(console), file


def table() -> Table:
    made = Table()
    made.add_column("variable")
    return made


@pytest.mark.parametrize("terminal", [True, False])
def test_it_knows_whether_it_is_a_terminal(terminal: bool) -> None:
    assert screen(terminal=terminal)[0].is_terminal is terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_neither_folded_nor_interpreted(terminal: bool) -> None:
    shown, file = screen(terminal=terminal)
    text = "[bold]a line[/] of more than [20] characters, 0.5, 'quotes' and :x:"
    shown.line(text)
    assert file.getvalue() == f"{text}\n"


def test_a_terminal_gets_the_table() -> None:
    shown, file = screen(terminal=True)
    shown.show(table(), "plain\n")
    assert "┏" in file.getvalue()
    assert "plain" not in file.getvalue()


def test_a_file_gets_the_plain_text_as_it_is() -> None:
    shown, file = screen(terminal=False)
    plain = "a line of many more than twenty characters\n"
    shown.show(table(), plain)
    assert file.getvalue() == plain


def test_it_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().line("hello")
    assert capsys.readouterr().out == "hello\n"
