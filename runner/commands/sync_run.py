"""`runner sync`: delivers what a run recorded to its stores.

Exit code: 0 when everything is delivered, 1 when something is left, 2 for a mistake.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from runner.errors import RunDirectoryError
from runner.runs.run_directory import RunDirectory
from runner.tracking.delivery import print_warnings, sync
from runner.tracking.tracking_directory import TrackingDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner sync`."""
    parser.add_argument("run", metavar="RUN", help="the directory of one run")
    parser.add_argument("--uri", help="deliver to this MLflow tracking URI from now on")


def run(arguments: argparse.Namespace) -> int:
    """Delivers the records of a run; returns 1 when something is left."""
    print_warnings()
    directory = TrackingDirectory(Path(arguments.run).absolute())
    identity = directory.identity()
    if identity is None:
        RunDirectory(Path(arguments.run)).named_record()
    elif not (identity.stores or arguments.uri):
        state, remedy = f"{arguments.run} was recorded in no store", "name one by --uri"
        raise RunDirectoryError.of(state, "its tracking was off", remedy)
    if not sync(directory, arguments.uri, partial(print, flush=True)):
        return 1
    print("all is delivered")
    return 0
