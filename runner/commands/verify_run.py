"""`runner verify`: derives the values that a run started from again, from its sources.

Exit code: 0 when they are the same bit for bit, 1 when they differ, 2 when a source is missing.
"""

from __future__ import annotations

import argparse

from runner.system.imports import import_tensorflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner verify`."""
    parser.add_argument("run", metavar="RUN", help="the directory of a run")


def run(arguments: argparse.Namespace) -> None:
    """Prints what agrees; raises what `verify` raises."""
    import_tensorflow()
    from runner.training.first_values import verify

    print("\n".join(verify(arguments.run)))
