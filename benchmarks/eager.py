"""Speed of `runner.warm_start` on a Keras model of 100 MB: `python -m benchmarks.eager`."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras

import runner
from benchmarks.harness import Result, compare, options, report

PARTS = ("cnn", "lstm", "head")
_STAMPS = itertools.count(1)


def build(width: int) -> keras.Model:
    """Returns three parts of eight dense layers each."""
    layers = [
        keras.Sequential([keras.layers.Dense(width, name=f"dense{n}") for n in range(8)], name=part)
        for part in PARTS
    ]
    return keras.Sequential([keras.Input((width,)), *layers], name="net")


def measured(work: Any, files: Sequence[Path]) -> float:
    """Returns the seconds that the work takes with files whose digests are not known yet."""
    for file in files:
        os.utime(file, ns=(next(_STAMPS), next(_STAMPS)))
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def of_files(model: keras.Model, folder: Path, suffix: str, repeats: int) -> list[Result]:
    """Compares a warm start from three files with `load_weights` of the same three."""
    parts = {part: folder / f"{part}.{suffix}" for part in PARTS}
    for part, file in parts.items():
        layer = model.get_layer(part)
        (layer.save if suffix == "keras" else layer.save_weights)(file)
    scaffolds = {
        part: {
            "variables": {"include": [f"{part}/*"]},
            "checkpoint": file,
            "rename": {f"{part}/": ""},
        }
        for part, file in parts.items()
    }

    def load_weights() -> None:
        for part, file in parts.items():
            model.get_layer(part).load_weights(file)

    works = {
        "load_weights": load_weights,
        "warm_start": partial(runner.warm_start, model, scaffolds),
    }
    files = [*parts.values()]
    ways = {name: partial(measured, work, files) for name, work in works.items()}
    for way in ways.values():
        way()  # Imports, and the pages that the process has never used.
    return compare(f"100 MB in 3 x .{suffix}", "s", ways, {"warm_start": 1.0}, repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=5)
    parser.add_argument("--width", type=int, default=1024, help="of the layers (default 1024)")
    args = parser.parse_args(arguments)
    model = build(args.width)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("weights.h5", "keras"):
            results += of_files(model, Path(folder), suffix, args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
