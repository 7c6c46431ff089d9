"""Speed and memory of warm starts: `python -m benchmarks.restoration`."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import Result, compare, options, report, shown
from benchmarks.restoration_cases import WAYS, Case
from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.restoration.plan import LocatedSources, make_plan
from runner.restoration.variables import StateClass, VariableSpec

PARTS = ("cnn", "lstm", "head")
# Medians of five equal measurements differ by so much on a quiet machine.
NOT_SLOWER = 1.1

T = TypeVar("T")


def cases(scale: float, directory: Path) -> dict[str, tuple[Case, dict[str, float]]]:
    """Returns the cases and what their ways must not exceed."""
    large = (max(1, int(1024 * scale)), 2048)
    big = (max(4, int(500_000_000 / 4 / 1024 * scale)), 1024)
    many = max(3, int(1200 * scale))
    return {
        "bundles": (
            Case(
                "3 bundles of 40 variables of 8 MB and 100 small",
                dict.fromkeys(PARTS, (large,) * 40 + ((16, 16),) * 100),
                directory=directory / "bundles",
            ),
            {"restorer": 0.9, "restorer, remaining": 0.4, "runner, monitored, scaffolds": 0.9},
        ),
        "variable": (
            Case("one variable of 0.5 GB", {"cnn": (big,)}, directory=directory / "variable"),
            {"restorer, remaining": 0.9},
        ),
        "slice": (
            Case("a quarter of it", {"cnn": (big,)}, 4, 1, directory / "variable"),
            {"restorer, remaining": 0.9},
        ),
        "parts": (
            Case("its four quarters", {"cnn": (big,)}, 4, 4, directory / "variable"),
            {"restorer, remaining": 0.9},
        ),
        "many": (
            Case(
                "1,200 variables of 1 KB over 3 bundles",
                {
                    part: ((16, 16),) * (many // 3 + (index < many % 3))
                    for index, part in enumerate(PARTS)
                },
                directory=directory / "many",
            ),
            {"restorer": 1.0, "restorer, remaining": 0.7},
        ),
    }


def speed(case: Case, limits: dict[str, float], repeats: int) -> list[Result]:
    """Compares the ways to initialise and restore, and a second restoration with the first.

    Each measurement has a separate process, as a run has: memory that a process has used before
    costs nothing, and fresh memory costs more than reading.
    """
    ways = {name: _alone(_seconds, case, name) for name in WAYS if "npz" not in name}
    results = compare(case.name, "s", ways, limits, repeats)
    twice = [_alone(_restored_twice, case, "restorer")() for _ in range(repeats)]
    first, second = map(tuple, zip(*twice, strict=True))
    ratio = statistics.median(second) / statistics.median(first)
    again = [
        Result(case.name, "restorer: first restore", "s", first),
        Result(case.name, "restorer: second in the session", "s", second, ratio, NOT_SLOWER),
    ]
    return [*results, *shown(again)]


def memory(case: Case, repeats: int) -> list[Result]:
    """Compares the peak memory of the ways, each in a separate process."""
    ways = {name: _alone(peak_memory, case, name, method="spawn") for name in WAYS}
    limits = dict.fromkeys(("restorer", "restorer, remaining", "restorer, npz"), 1.0)
    return compare(f"{case.name}: peak memory", "MiB", ways, limits, repeats)


def _alone(
    function: Callable[[Case, str], T], case: Case, way: str, method: str = "forkserver"
) -> Callable[[], T]:
    """Returns a function that calls `function` in a new process.

    A fork server's processes share the memory of the imports; a spawned process does not.
    """
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["benchmarks.restoration_cases"])

    def measure() -> T:
        with context.Pool(1) as pool:
            return pool.apply(function, (case, way))

    return measure


def _seconds(case: Case, way: str) -> float:
    return WAYS[way](case).seconds()


def _restored_twice(case: Case, way: str) -> list[float]:
    return WAYS[way](case).restored_twice()


def peak_memory(case: Case, way: str) -> float:
    """Does it once and returns the peak resident memory of this process in MiB."""
    WAYS[way](case).seconds()
    status = Path("/proc/self/status")
    if status.exists():
        # Linux hands `ru_maxrss` down from the parent process, but not this.
        (line,) = (line for line in status.read_text().splitlines() if "VmHWM" in line)
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def planning(count: int, limit: float, repeats: int) -> list[Result]:
    """Measures planning `count` variables from three sources."""
    gc.freeze()  # As a command does after its imports.
    names = {part: [f"{part}/layer_{i}/kernel" for i in range(count // 3)] for part in PARTS}
    variables = [
        VariableSpec(TensorSpec(name, (16, 16), "float32"), StateClass.WEIGHT, True, "Const")
        for names_of_part in names.values()
        for name in names_of_part
    ]
    sources = {
        part: CheckpointSpec(part, 1, {n: TensorSpec(n, (16, 16), "float32") for n in tensors})
        for part, tensors in names.items()
    }
    scaffolds = {
        part: ScaffoldConfig(variables=VariablesConfig(include=[f"{part}/*"])) for part in PARTS
    }
    values = []
    for _ in range(repeats):
        start = time.perf_counter()
        make_plan(variables, scaffolds, LocatedSources(sources))
        values.append(time.perf_counter() - start)
    case = f"planning {count:,} variables"
    return shown([Result(case, "make_plan", "s", tuple(values), limit=limit)])


def planning_by_rules(repeats: int) -> list[Result]:
    """Measures planning 1,200 variables by whole names, and by 31 rules in no more time."""
    pairs = {
        f"layer_{block}/part{role}/kernel": f"blocks.{block}.module{role}.weight"
        for block in range(40)
        for role in range(30)
    }
    spec = TensorSpec("", (8, 8), "float32")
    variables = [
        VariableSpec(replace(spec, name=name), StateClass.WEIGHT, True, "Const") for name in pairs
    ]
    tensors = {name: replace(spec, name=name) for name in pairs.values()}
    roles = {f"{{block/}}part{role}/": f"{{block/}}module{role}. | torch" for role in range(30)}
    keys: dict[str, dict[str, Any]] = {
        "whole names": {"rename": pairs, "convert": {"*": "torch"}},
        "31 rules": {"rules": {"layer_{n}/": "blocks.{n}.", **roles}},
    }
    results: list[Result] = []
    for name, key in keys.items():
        scaffold = ScaffoldConfig(variables=VariablesConfig(include=["*"]), **key)
        values = []
        for _ in range(repeats):
            start = time.perf_counter()
            located = LocatedSources({"net": CheckpointSpec("net", 1, tensors)})
            make_plan(variables, {"net": scaffold}, located).require_sound()
            values.append(time.perf_counter() - start)
        ratio = statistics.median(values) / results[0].median if results else None
        limit = None if ratio is None else 1.0
        case = "planning 1,200 variables"
        results.append(Result(case, name, "s", tuple(values), ratio=ratio, limit=limit))
    return shown(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default 1)")
    parser.add_argument(
        "--only", nargs="*", help="cases: bundles variable slice parts many planning"
    )
    parser.add_argument("--data", type=Path, help="where 3 GB of checkpoints go for a while")
    args = parser.parse_args(arguments)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=args.data) as directory:
        for key, (case, limits) in cases(args.scale, Path(directory)).items():
            if args.only and key not in args.only:
                continue
            forms = ("bundle", "npz") if key == "bundles" else ("bundle",)
            for form in forms:
                case.save(form)
            results += speed(case, limits, args.repeats)
            if key == "bundles":
                results += memory(case, max(1, args.repeats // 2))
    if not args.only or "planning" in args.only:
        results += planning(50_000, 1.0, args.repeats)
        results += planning_by_rules(args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
