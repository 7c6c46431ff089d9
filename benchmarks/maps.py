"""How many variables of public models the map pairs rightly, wrongly, or flags; see `--help`.

Each list in `tests/data/maps` names a model's variables and a file's tensors, with shapes, and
which tensor is which variable. It is read as it is, with its tensors in another order, and with
every word of the tensors' names replaced by nonsense. Lists whose layers mostly have names that
Keras made, as `conv2d_12`, are left out of the line for words of the writers' own. Exits with 1
when a pair is wrong and not flagged, or when a limit of processor time is missed.

    right     proposed, and the right tensors
    wrong     proposed, and others
    flagged   several are possible; `inside`: the right tensors are among them
    left      without a tensor, as it should be
    missed    without a tensor, though there is one
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness import Result, report
from runner.mapping.written_rules import write
from tests.samples.name_lists import LISTS, load, score

CHANGES = ("plain", "shuffled", "nonsense")
OUTCOMES = ("right", "wrong", "flagged", "inside", "left", "missed")
# Seconds of processor time: for ResNet-50, and for 1,200 variables.
_LIMITS = {
    "torchvision-resnet50-keras.applications": 1.0,
    "hugging_face-whisper_large-kerashub": 5.0,
}
_OWN_WORDS = "plain, words of the writers' own"


def main() -> int:
    """Prints the table; returns 1 for a wrong pair that is not flagged, or for a missed limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("lists", nargs="*", help="parts of names of lists; by default all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lists = [load(path) for path in sorted(LISTS.glob("*.json.gz"))]
    lists = [names for names in lists if not args.lists or any(t in names.name for t in args.lists)]
    totals = {title: Counter[str]() for title in (*CHANGES, _OWN_WORDS)}
    late = False
    print(f"{'list':44}{'':10}{'variables':>9}", *(f"{key:>7}" for key in OUTCOMES), "rules", "s")
    for names in lists:
        for change in CHANGES:
            changed = names.changed(change)
            begun = time.process_time()
            found = changed.correspondence()
            took = time.process_time() - begun
            counts = score(changed, found)
            totals[change] += counts
            if change == "plain" and names.has_words:
                totals[_OWN_WORDS] += counts
            rules = len(write(found, changed.variables, changed.layers).rules)
            row = [f"{counts[key]:7}" for key in OUTCOMES]
            limit = _LIMITS.get(names.name, math.inf) if change == "plain" else math.inf
            late |= took > limit
            print(
                f"{names.name:44.44}{change:10}{len(names.variables):9}",
                *row,
                f"{rules:5} {took:.2f}{f', more than {limit:g}' if took > limit else ''}",
            )
    for title, counts in totals.items():
        paired = sum(counts[key] for key in ("right", "wrong", "flagged", "missed"))
        share = 100 * counts["right"] / max(paired, 1)
        inside = 100 * counts["inside"] / max(counts["flagged"], 1)
        print(
            f"{title}: {paired:,} variables with a tensor, {share:.1f} % right, "
            f"{counts['wrong']} wrong, {counts['flagged']} flagged ({inside:.1f} % inside), "
            f"{counts['missed']} missed"
        )
    results = [
        Result(title, key, "variables", (counts[key],), limit=0 if key == "wrong" else None)
        for title, counts in totals.items()
        for key in OUTCOMES
    ]
    return max(report(results, args.json), int(late))


if __name__ == "__main__":
    sys.exit(main())
