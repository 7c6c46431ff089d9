"""Plans and restores gigabytes from 20 sources: `python -m benchmarks.large --gigabytes 10`.

The files are read at the speed of the disk: the kernel is asked to forget them before each reading.
The variables need as much memory as the files need disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.harness import Result, compare, options, report, shown
from benchmarks.restoration_cases import Case, restorer
from runner.config.choices import Initialize

SOURCES = 20
VARIABLES = 4
PLANNING_LIMIT_S = 2.0
# 0.9 of the speed of `cat`.
LIMIT = 1 / 0.9


def large(gigabytes: float, folder: Path) -> Case:
    """Returns a model in as many parts as there are sources."""
    rows = round(gigabytes * 1e9 / SOURCES / VARIABLES / 4096)
    parts = {f"part{number:02}": ((rows, 1024),) * VARIABLES for number in range(SOURCES)}
    return Case(f"{gigabytes:g} GB in {SOURCES} sources", parts, directory=folder)


def planned(case: Case, repeats: int) -> list[Result]:
    """Measures opening the sources and planning."""
    values = []
    with tf.Graph().as_default():
        variables = case.variables()
        for _ in range(repeats):
            begun = time.perf_counter()
            case.plan(variables).require_sound()
            values.append(time.perf_counter() - begun)
    return shown([Result(case.name, "planned", "s", tuple(values), limit=PLANNING_LIMIT_S)])


def restored(case: Case, repeats: int) -> list[Result]:
    """Compares a session's restore with reading the files by `cat`, from the disk and the cache."""
    files = sorted(path for path in case.directory.rglob("*") if path.is_file())
    way = restorer(case, Initialize.remaining)

    def cat() -> float:
        begun = time.perf_counter()
        subprocess.run(["cat", *map(str, files)], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    def cold(measure: Callable[[], float]) -> Callable[[], float]:
        def forgotten() -> float:
            for file in files:
                with file.open("rb") as stream:
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return measure()

        return forgotten

    results = []
    for place, of in (("disk", cold), ("cache", lambda measure: measure)):
        ways = {"cat": of(cat), "restored": of(way.seconds)}
        # The cache is faster than the copies that both make.
        limits = {"restored": LIMIT} if place == "disk" else {}
        results += compare(f"{case.name}, from the {place}", "s", ways, limits, repeats)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--data", type=Path, help="where the files go for a while")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        case = large(args.gigabytes, Path(folder))
        case.save()
        os.sync()  # Only what is on the disk can be forgotten.
        results = planned(case, args.repeats) + restored(case, args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
