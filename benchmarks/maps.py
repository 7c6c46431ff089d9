"""How many variables of public models the map pairs rightly, wrongly, or flags; see `--help`.

Each list in `tests/data/maps` names a model's variables and a file's tensors, with shapes, and
which tensor is which variable. It is read as it is, with its tensors in another order, and with
every word of the tensors' names replaced by nonsense. Exits with 1 when a pair is wrong and not
flagged, or when a limit of time is missed.

    right     certain, and the right tensors
    wrong     certain, and others
    flagged   not certain; `inside`: the right tensors are among the candidates
    left      without a tensor, as it should be
    missed    without a tensor, though there is one
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from runner.mapping.correspondence import Correspondence, correspond
from runner.mapping.fitting import Taken
from runner.mapping.rules import write

LISTS = Path(__file__).resolve().parents[1] / "tests/data/maps"
CHANGES = ("plain", "shuffled", "nonsense")
OUTCOMES = ("right", "wrong", "flagged", "inside", "left", "missed")
# Seconds: for ResNet-50, and for 1,200 variables.
_LIMITS = {"torchvision-resnet50-keras.applications": 1.0, "1,200 variables": 5.0}

# The tensors of an answer, and the part of a fused one.
Answer = tuple[frozenset[str], int | None]


@dataclass(frozen=True)
class NameList:
    """A model's variables, a file's tensors, and which is which.

    Attributes:
      name: of the file.
      variables: name -> shape.
      layers: variable -> class of its Keras layer.
      tensors: name -> shape, of floating tensors.
      ordered: whether their order is the one of the definition.
      truth: variable -> answer; None where the file has no tensor for it.
    """

    name: str
    variables: Mapping[str, tuple[int, ...]]
    layers: Mapping[str, str]
    tensors: Mapping[str, tuple[int, ...]]
    ordered: bool
    truth: Mapping[str, Answer | None]

    def changed(self, change: str, seed: int = 0) -> NameList:
        """Returns the list with tensors in another order, or with nonsense for their words."""
        rng = random.Random(seed)
        if change == "shuffled":
            names = rng.sample([*self.tensors], len(self.tensors))
            return replace(
                self, tensors={name: self.tensors[name] for name in names}, ordered=False
            )
        if change == "nonsense":
            words: dict[str, str] = {}
            new = {name: _nonsense(name, words, rng) for name in self.tensors}
            truth = {
                variable: answer and (frozenset(new[name] for name in answer[0]), answer[1])
                for variable, answer in self.truth.items()
            }
            tensors = {new[name]: shape for name, shape in self.tensors.items()}
            return replace(self, tensors=tensors, truth=truth)
        return self

    def correspondence(self) -> Correspondence:
        """Returns what the map finds."""
        return correspond(self.variables, self.tensors, layers=self.layers, ordered=self.ordered)


def load(path: Path) -> NameList:
    """Reads a list."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    tensors = {
        name: tuple(shape)
        for name, shape, dtype in content["tensors"]
        if not dtype.startswith(("int", "uint", "bool"))
    }
    return NameList(
        path.name.removesuffix(".json.gz"),
        {name: tuple(shape) for name, shape, _ in content["variables"]},
        {name: layer or "" for name, _, layer in content["variables"]},
        tensors,
        content["order"] == "definition",
        {name: _answer(content["truth"].get(name)) for name, *_ in content["variables"]},
    )


def _answer(truth: Any) -> Answer | None:
    if not truth:
        return None
    if isinstance(truth, dict):
        return frozenset(truth["of"]), None
    parts = [re.match(r"split\(3, (\d)", step) for step in truth[1:]]
    return frozenset(truth[:1]), next((int(part[1]) for part in parts if part), None)


def _nonsense(name: str, words: dict[str, str], rng: random.Random) -> str:
    def other(word: re.Match[str]) -> str:
        while word[0] not in words:
            syllables = (rng.choice("bdfgjklmnprstvz") + rng.choice("aeiou") for _ in range(3))
            if (new := "".join(syllables)) not in words.values():
                words[word[0]] = new
        return words[word[0]]

    return re.sub(r"[A-Za-z]+", other, name)


def score(names: NameList, found: Correspondence) -> Counter[str]:
    """Counts the outcomes of a list's variables."""
    counts = Counter[str]()
    for variable, answer in names.truth.items():
        pair = found.pairs.get(variable)
        if pair is None:
            counts["left" if answer is None else "missed"] += 1
        elif pair.is_certain:
            counts["right" if _given(pair.taken) == answer else "wrong"] += 1
        else:
            counts["flagged"] += 1
            counts["inside"] += any(_given(option) == answer for option in pair.candidates)
    return counts


def _given(taken: Taken) -> Answer:
    return frozenset(taken.tensors), taken.part


def _large(names: NameList) -> NameList:
    """Returns a list of at least 1,200 variables: blocks of another, several times."""
    count = -(-1200 // len(names.variables))
    return NameList(
        "1,200 variables",
        {f"part{at}/{n}": shape for at in range(count) for n, shape in names.variables.items()},
        {f"part{at}/{n}": layer for at in range(count) for n, layer in names.layers.items()},
        {f"parts.{at}.{n}": shape for at in range(count) for n, shape in names.tensors.items()},
        names.ordered,
        {},
    )


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
    totals = {change: Counter[str]() for change in CHANGES}
    seconds: dict[str, float] = {}
    print(f"{'list':44}{'':10}{'variables':>9}", *(f"{key:>7}" for key in OUTCOMES), "rules", "s")
    for names in lists:
        for change in CHANGES:
            changed = names.changed(change)
            begun = time.perf_counter()
            found = changed.correspondence()
            took = time.perf_counter() - begun
            counts = score(changed, found)
            totals[change] += counts
            rules = len(write(found, changed.variables, changed.layers).rules)
            row = [f"{counts[key]:7}" for key in OUTCOMES]
            print(
                f"{names.name:44.44}{change:10}{len(names.variables):9}",
                *row,
                f"{rules:5} {took:.2f}",
            )
            if change == "plain":
                seconds[names.name] = took
    if not args.lists:
        large = _large(next(names for names in lists if names.name in _LIMITS))
        begun = time.perf_counter()
        large.correspondence()
        seconds[large.name] = time.perf_counter() - begun
        print(f"{len(large.variables):,} variables: {seconds[large.name]:.2f} s")
    worst = 0
    for change, counts in totals.items():
        variables = sum(counts[key] for key in OUTCOMES if key != "inside")
        paired = variables - counts["left"]
        share = 100 * counts["right"] / paired if paired else 0.0
        inside = 100 * counts["inside"] / counts["flagged"] if counts["flagged"] else 100.0
        print(
            f"{change}: {variables:,} variables of {len(lists)} lists, {share:.1f} % right, "
            f"{counts['wrong']} wrong, {counts['flagged']} flagged ({inside:.1f} % inside), "
            f"{counts['missed']} missed"
        )
        worst |= counts["wrong"] > 0
    late = {name: limit for name, limit in _LIMITS.items() if seconds.get(name, 0.0) > limit}
    for name, limit in late.items():
        print(f"{name}: {seconds[name]:.2f} s, more than {limit:g}")
    if args.json:
        results = {change: dict(counts) for change, counts in totals.items()}
        args.json.write_text(json.dumps({"machine": machine(), "results": {**results, **seconds}}))
    return int(worst or bool(late))


if __name__ == "__main__":
    sys.exit(main())
