"""`runner prove`: compares the model of a run, as the run started it, with a reference.

Exit code: 0 when they agree, 2 when a file cannot be read, 3 when they do not agree.
"""

from __future__ import annotations

import argparse

from runner.errors import PlanError
from runner.system.imports import import_tensorflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner prove`."""
    parser.add_argument("run", metavar="RUN", help="the directory of a run")
    parser.add_argument("reference", metavar="REFERENCE", help="an .npz file: docs/how-to/prove.md")
    parser.add_argument("--scaffold", default="", help="prove the part of this scaffold alone")


def run(arguments: argparse.Namespace) -> None:
    """Prints the proof.

    Raises:
      RunnerError: as `prove_run`; `PlanError` when the proof fails.
    """
    import_tensorflow()
    from runner.training.plan_proof import prove_run

    proof = prove_run(arguments.run, arguments.reference, arguments.scaffold)
    if not proof.agrees:
        raise PlanError(proof.problem())
    print(proof)
