"""Names of public models' variables and of files' tensors, and how well the map pairs them."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.mapping.correspondence import Correspondence, correspond
from runner.mapping.module_fitting import Taken
from runner.mapping.numbered import words_for_numbers
from runner.planning.places import WeightsLayout

LISTS = Path(__file__).resolve().parents[1] / "data/maps"

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
        words = words_for_numbers(self.tensors, WeightsLayout({}, {}), self.variables)
        return correspond(
            self.variables, self.tensors, layers=self.layers, ordered=self.ordered, words=words
        )


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
    part = re.match(r"split\(3, (\d)", taken.cut)
    return frozenset(taken.tensors), int(part[1]) if part else None
