"""A terminal gets tables in colour, anything else plain text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from runner.console import Screen

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
