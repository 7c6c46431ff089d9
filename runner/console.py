"""Prints what a run reports: in colour on a terminal, as HTML in a notebook, otherwise in lines."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# Nothing is folded in plain text.
WIDEST = 1_000_000
# Of output that is read by another program, or in a log.
PIPED = 80
_HTML = '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'
# Rows above which a table is plain lines.
_MANY = 1_000


def as_text(renderable: RenderableType) -> str:
    """Returns a renderable as plain text in which nothing is folded."""
    console = Console(width=WIDEST, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def printable(text: str) -> str:
    r"""Returns a string with escapes for its control characters, which could steer a terminal.

    Names in a file are any string: one with a newline has one line, as `\n`.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def plural(count: int, noun: str) -> str:
    """Returns e.g. `1 variable` or `1,200 variables`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns the first items and the number of the others, such as `a, b, c and 2 more`."""
    shown, others = separator.join(items[:most]), len(items) - most
    if others <= 0:
        return shown
    return f"{shown}{' ' if separator == ', ' else separator}and {others:,} more"


def sized(size: float) -> str:
    """Returns a number of bytes as e.g. `85.4 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def shaped(shape: Sequence[int], dtype: str) -> str:
    """Returns e.g. `3x3x8` or `scalar int64`: a type other than float32 is named."""
    return ("x".join(map(str, shape)) or "scalar") + (f" {dtype}" if dtype != "float32" else "")


def short(digest: str) -> str:
    """Returns the beginning of `sha256:HEX`, for a screen."""
    return digest[:15]


@dataclass(frozen=True)
class Listing:
    """Rows as a table without its empty columns, or two lines a row where the table does not fit.

    Attributes:
      columns: the headings.
      rows: a cell for each column; a `Text` may have a style.
      numbers: the columns of numbers.
      width: the most columns that a table may fill; None for the console's width.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    numbers: Sequence[str] = ()
    width: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the table, or two lines a row."""
        used = [index for index in range(len(self.columns)) if any(row[index] for row in self.rows)]
        if len(self.rows) > _MANY:
            yield from self._lines(used)
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for index in used:
            name = self.columns[index]
            table.add_column(name, justify="right" if name in self.numbers else "left")
        for row in self.rows:
            table.add_row(*(_text(row[index]) for index in used))
        widest = console.measure(table, options=options.update_width(WIDEST)).maximum
        if widest <= (self.width or options.max_width):
            yield table
            return
        yield Text()
        for first, second, *rest in self.rows:
            yield Text("  ").join([_text(first), _text(second)])
            named = [
                Text.assemble(f"{name} " if name in self.numbers else "", _text(cell))
                for name, cell in zip(self.columns[2:], rest, strict=True)
                if cell
            ]
            yield Padding(Text(", ").join(named), (0, 0, 0, 2), expand=False)
        yield Text()

    def _lines(self, used: Sequence[int]) -> Iterator[Segment]:
        """Yields a line for each row without folding or style; Rich takes a millisecond a row."""
        rows = (self.columns, *self.rows)
        cells = [[printable(str(row[index])) for index in used] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            aligned = [
                cell.rjust(width) if self.columns[index] in self.numbers else cell.ljust(width)
                for index, cell, width in zip(used, row, widths, strict=True)
            ]
            yield Segment("  ".join(aligned).rstrip() + "\n")


def _text(cell: str | Text) -> Text:
    if isinstance(cell, Text):
        return cell if cell.plain.isprintable() else Text(printable(cell.plain), cell.style)
    return Text(printable(cell))


class Screen:
    """Prints to standard output, in colour and at the terminal's width only on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    @property
    def is_terminal(self) -> bool:
        """Whether this is a terminal, on which a line can be overwritten."""
        return self.console.is_terminal

    def line(self, text: str) -> None:
        """Prints a line as it is, above a progress bar if one is shown."""
        if self.is_terminal:
            self.console.print(text, soft_wrap=True, markup=False, emoji=False)
        else:
            # The same text; Rich takes longer to print it than a small model's step.
            self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Writes a string as it is, for another program to read."""
        self.console.file.write(text)
        self.console.file.flush()

    def show(self, renderable: RenderableType, plain: str) -> None:
        """Prints `renderable` on a terminal, and `plain`, which is never folded, elsewhere."""
        if self.is_terminal:
            self.console.print(renderable)
        else:
            self.write(plain)


def as_html(renderable: RenderableType) -> str:
    """Returns a renderable as HTML, which scrolls where it is wider than the page."""
    console = Console(width=WIDEST, file=io.StringIO(), record=True, force_jupyter=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_HTML)


class NotebookScreen(Screen):
    """Prints lines into the output of a notebook's cell, and shows tables as HTML."""

    def show(self, renderable: RenderableType, plain: str) -> None:
        """Shows a renderable as HTML."""
        self.live(as_html(renderable))

    def live(self, html: str) -> Callable[[str], None]:
        """Shows HTML, and returns a function that replaces it by other HTML."""
        # An installation without notebooks does not have it.
        notebook: Any = importlib.import_module("IPython.display")
        handle = notebook.display(notebook.HTML(html), display_id=True)
        return lambda html: handle.update(notebook.HTML(html))


def screen_of_process() -> Screen:
    """Returns the screen that suits this process: a notebook's cell, or standard output."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return NotebookScreen() if hasattr(shell, "kernel") else Screen()
