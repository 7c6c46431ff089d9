"""The process of a command: `python -m runner`, or `runner`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def command() -> NoReturn:
    """Runs the command `runner`: like `python -m runner`, with the current directory's modules."""
    sys.path.insert(0, os.getcwd())
    _main_within_grace()


def _main_within_grace() -> NoReturn:
    """Runs `main` and ends the process, after a signal without a cleanup that takes seconds."""
    # Python's own handler would print a traceback of the imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import faulthandler
    import logging

    from runner.system.output import GuardedOutput
    from runner.system.signals import ending_at_once

    output = GuardedOutput()
    # If native code aborts the process, the Python frames show in which step.
    faulthandler.enable(all_threads=False)
    with ending_at_once():
        from runner.commands.command_line import fail, main

        try:
            code: object = main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        if output.failure is not None and not code:
            code = fail(output.failure)
    if code in (130, 143):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    _main_within_grace()
