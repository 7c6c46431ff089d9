"""Compares the results of two `make bench`: `python -m benchmarks.compare OLD.json NEW.json`.

Ratios are compared where there are any: each was measured against a peer in the same minutes, so
that they say more of the code than medians do, which say more of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
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


def main() -> int:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    args = parser.parse_args()
    old, new = (json.loads(path.read_text()) for path in (args.old, args.new))
    print(f"old: {old['machine']}\nnew: {new['machine']}")
    print("\n".join(compared(old, new)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
