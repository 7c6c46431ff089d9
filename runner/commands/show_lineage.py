"""`runner lineage`: shows the runs that a run started from, and theirs, as a tree."""

from __future__ import annotations

import argparse

from runner.runs.lineage import lineage, tree
from runner.tracking.address import DEFAULT_URI


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner lineage`."""
    parser.add_argument("run", metavar="RUN", help="a run directory, or the id of a run in MLflow")
    parser.add_argument("--uri", help=f"of an id: MLflow's tracking URI ({DEFAULT_URI})")


def run(arguments: argparse.Namespace) -> None:
    """Prints the tree; raises what `lineage` raises."""
    print("\n".join(tree(lineage(arguments.run, arguments.uri))))
