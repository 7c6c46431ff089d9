"""The runs that a run started from, and theirs: `python -m runner.lineage RUN`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from runner.errors import RunnerError
from runner.runs.provenance import Ancestor, lineage
from runner.tracking.address import DEFAULT_URI


def main(arguments: list[str] | None = None) -> int:
    """Prints the tree; returns 0, or the exit code of the error when there is no such run."""
    parser = argparse.ArgumentParser(prog="python -m runner.lineage", description=__doc__)
    parser.add_argument("run", help="a run directory, or the id of a run in MLflow")
    parser.add_argument("--uri", default=DEFAULT_URI, help="MLflow's tracking URI (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        print("\n".join(_lines(lineage(options.run, options.uri))))
    except RunnerError as error:
        print(f"runner.lineage: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _lines(ancestor: Ancestor) -> Iterator[str]:
    yield ancestor.label
    for index, (name, source) in enumerate(ancestor.sources.items(), start=1):
        last = index == len(ancestor.sources)
        first, *others = _lines(source)
        yield f"{'└── ' if last else '├── '}{name}: {first}"
        yield from (f"{'    ' if last else '│   '}{line}" for line in others)


if __name__ == "__main__":
    sys.exit(main())
