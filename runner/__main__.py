"""The process of a command: `python -m runner`, or `runner`."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from runner.commands.command_line import main


def command() -> NoReturn:
    """Runs the command `runner`: like `python -m runner`, with the current directory's modules."""
    sys.path.insert(0, str(Path.cwd()))
    _main_within_grace()


def _main_within_grace() -> NoReturn:
    """Runs `main` and ends the process, after a signal without a cleanup that takes seconds."""
    # If native code aborts the process, the Python frames show in which step.
    faulthandler.enable(all_threads=False)
    try:
        code: object = main()
    except SystemExit as end:
        code = end.code
    if code in (130, 143):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    _main_within_grace()
