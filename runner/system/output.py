"""Standard output and error of a command, which may lose their reader or meet a full disk."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from runner.errors import OutputError
from runner.system.signals import Interruption


class GuardedOutput:
    """Replaces standard output and error by files whose writing raises no error.

    When the reader has gone, as with `| head`, further output is discarded, and a run that can be
    resumed ends as after SIGTERM. After any other failure, such as a full disk, further output is
    discarded too, and what the process does continues.

    Attributes:
      failure: the first failure to write standard output, but for a reader that has gone.
    """

    def __init__(self) -> None:
        self.failure: OutputError | None = None
        sys.stdout = _guarded(sys.stdout, self._note)
        sys.stderr = _guarded(sys.stderr, lambda error: None)

    def _note(self, error: OSError) -> None:
        cause = error.strerror or str(error)
        self.failure = OutputError.of("standard output cannot be written", cause)


class _GuardedFile(io.FileIO):
    """A file that discards what is written once its reader has gone, or a write has failed."""

    def __init__(self, descriptor: int, fail: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._fail = fail

    def write(self, data: Any, /) -> int:
        """Writes the data, or discards it."""
        try:
            return super().write(data)
        except OSError as error:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)
            if isinstance(error, BrokenPipeError):
                Interruption.end_resumable()
            else:
                self._fail(error)
            return super().write(data)


def _guarded(stream: TextIO | None, fail: Callable[[OSError], None]) -> TextIO:
    if stream is None:  # It was closed before this process began, as by `>&-`.
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # It is captured within this process.
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_GuardedFile(stream.fileno(), fail)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
