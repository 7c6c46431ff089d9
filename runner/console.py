"""Prints what a run reports: in colour on a terminal, in plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console, RenderableType


class Screen:
    """Prints to standard output, in colour and at the terminal's width only on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    @property
    def is_terminal(self) -> bool:
        """Whether this is a terminal, where a line can be drawn again."""
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
