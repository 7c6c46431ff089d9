"""Compares the results of two `make bench`, each in a file or of a commit, where they then run.

    python -m benchmarks.compare OLD.json NEW.json
    python -m benchmarks.compare d2a1e38 HEAD --only start_up sweeps

Ratios are compared where there are any: each was measured against a peer in the same minutes, so
that they say more of the code than medians do, which say more of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# What two measurements of the same code differ by on a quiet machine.
NOISE = 0.05


def figures(results: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], float, str]]:
    """Yields what was measured, its ratio or else its median, and the unit."""
    for benchmark, rows in results.items():
        if benchmark == "machine":
            continue
        for row in rows:
            ratio = row["ratio"]
            value, unit = (row["median"], row["unit"]) if ratio is None else (ratio, "of the peer")
            yield (benchmark, row["case"], row["way"]), value, unit


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each figure, in both or in only one of them."""
    before = {key: value for key, value, _ in figures(old)}
    for key, value, unit in figures(new):
        name = f"{key[0]:<15} {key[1]:<44} {key[2]:<30}"
        was = before.pop(key, None)
        if was is None:
            yield f"{name} {'':>10} {value:>10.3f} {unit}, new"
        elif was:
            change = value / was - 1
            mark = "" if abs(change) <= NOISE else " slower" if change > 0 else " faster"
            yield f"{name} {was:>10.3f} {value:>10.3f} {unit} {change:+.0%}{mark}"
    for key in before:
        yield f"{key[0]:<15} {key[1]:<44} {key[2]:<30} is gone"


def results_of(source: str, names: Sequence[str]) -> Any:
    """Returns the results in a file, or those of the named benchmarks at a commit.

    Raises:
      CalledProcessError: there is no such commit.
      FileNotFoundError: the commit has no such benchmark.
    """
    if Path(source).is_file():
        return json.loads(Path(source).read_text())
    with tempfile.TemporaryDirectory() as name:
        tree, file = Path(name) / "tree", Path(name) / "results.json"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), source], check=True)
        try:
            # A missed limit is a result too.
            command = [sys.executable, "-m", "benchmarks", *names, "--json", str(file)]
            environment = {**os.environ, "PYTHONPATH": str(tree)}
            subprocess.run(command, cwd=tree, env=environment, check=False)
            return json.loads(file.read_text())
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


def main() -> int:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a file of results, or a commit")
    parser.add_argument("new", help="a file of results, or a commit")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="of a commit's")
    args = parser.parse_args()
    old, new = (results_of(source, args.only) for source in (args.old, args.new))
    print(f"old: {old['machine']}\nnew: {new['machine']}")
    print("\n".join(compared(old, new)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
