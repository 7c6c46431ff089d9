"""Delivers what a run recorded to its stores: `python -m runner.sync RUN_DIR`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from runner.errors import RunnerError
from runner.tracking.delivery import sync
from runner.tracking.follower_process import AWAIT, serve
from runner.tracking.tracking_directory import TrackingDirectory


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when everything is delivered, 1 when something is left, 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m runner.sync", description=__doc__)
    parser.add_argument("run_dir", help="the directory of one run")
    parser.add_argument("--uri", help="deliver to this MLflow tracking URI from now on")
    options = parser.parse_args(arguments)
    _log_warnings()
    try:
        if options.run_dir != AWAIT:
            directory = TrackingDirectory(Path(options.run_dir).absolute())
            return 0 if sync(directory, options.uri) else 1
        return 0 if serve() else 1
    except RunnerError as error:
        print(f"runner.sync: {error}", file=sys.stderr)
        return error.exit_code


class _Warnings(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes warnings to standard output while that has a reader."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Stops writing, because the run that read the warnings has ended."""
        logging.getLogger().removeHandler(self)


def _log_warnings() -> None:
    warnings = _Warnings(sys.stdout)
    warnings.setLevel(logging.WARNING)
    warnings.setFormatter(logging.Formatter("%(message)s"))
    logging.raiseExceptions = False  # No tracebacks about a log on a full disk.
    logging.basicConfig(level=logging.INFO, handlers=[warnings], force=True)


if __name__ == "__main__":
    code = main()
    # A run waits for this, perhaps within a grace period, and taking MLflow apart takes seconds.
    logging.shutdown()
    os._exit(code)
