"""How many variables of public models the map pairs rightly, wrongly, or flags; see `--help`.

Each list in `tests/data/maps` names a model's variables and a file's tensors, with shapes, and
which tensor is which variable. It is read as it is, with its tensors in another order, and with
every word of the tensors' names replaced by nonsense. Lists whose layers mostly have names that
Keras made, as `conv2d_12`, are left out of the line for words of the writers' own. Exits with 1
when a pair is wrong and not flagged, or when a limit of processor time is missed.

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
import math
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
# Seconds of processor time: for ResNet-50, and for 1,200 variables.
_LIMITS = {
    "torchvision-resnet50-keras.applications": 1.0,
    "hugging_face-whisper_large-kerashub": 5.0,
}
_OWN_WORDS = "plain, words of the writers' own"

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

    @property
    def has_words(self) -> bool:
        """Whether at least half of the variables have more for a name than their layer's class."""
        words = (
            re.sub(r"(_\d+)?/[^/]+$", "", name).replace("_", "") != layer.lower()
            for name, layer in self.layers.items()
        )
        return 2 * sum(words) >= len(self.layers)

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
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "results": totals}))
    return int(late or any(counts["wrong"] for counts in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
