"""Speed and memory of warm starts: `python -m benchmarks.restoration`."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import Result, memory, options, report, shown
from benchmarks.restoration_cases import WAYS, Case
from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.choices import StateClass
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.planning.plan import LocatedSources, make_plan
from runner.planning.variables import VariableSpec

PARTS = ("cnn", "lstm", "head")
# Way -> what it is compared with besides the first way, and the greatest ratio to it.
FURTHER = {
    "restorer, remaining": ("init_from_checkpoint", 1.3),
    "runner, monitored, scaffolds": ("tensorflow, monitored, init_fn", 0.8),
}

T = TypeVar("T")


def cases(scale: float, directory: Path) -> dict[str, Case]:
    """Returns the cases."""
    large = (max(1, int(512 * scale)), 2048)
    big = (max(4, int(250_000_000 / 4 / 1024 * scale)), 1024)
    many = max(1, int(200 * scale))
    whole = directory / "variable"
    shapes = dict.fromkeys(PARTS, ((16, 16),) * many)
    of_parts = dict.fromkeys(PARTS, (large,) * 40 + ((16, 16),) * 30)
    return {
        "bundles": Case(
            f"3 bundles of 40 x {4 * scale:g} MB", of_parts, directory=directory / "bundles"
        ),
        "variable": Case(f"one variable of {250 * scale:g} MB", {"cnn": (big,)}, directory=whole),
        "slice": Case("a quarter of it", {"cnn": (big,)}, 4, 1, whole),
        "parts": Case("its four quarters", {"cnn": (big,)}, 4, 4, whole),
        "many": Case(f"3 bundles of {many} x 1 KB", shapes, directory=directory / "many"),
    }


def speed(case: Case, repeats: int, *, monitored: bool) -> list[Result]:
    """Compares the time and the peak memory of the ways to initialise and restore.

    Each measurement has a separate process, as a run has: memory that a process has used before
    costs nothing, and fresh memory costs more than reading.
    """
    ways = [name for name in WAYS if monitored or "monitored" not in name]
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name in ways:
            measured[name].append(_alone(cost, case, name)())
    times, peaks = (
        {name: tuple(values[at] for values in measured[name]) for name in ways} for at in (0, 1)
    )
    (first, *_) = ways

    def result(name: str, base: str, limit: float | None) -> Result:
        ratio = statistics.median(times[name]) / statistics.median(times[base])
        way = name if base == first else f"{name} / {base.split(',')[-1].strip()}"
        return Result(case.name, way, "s", times[name], ratio, limit)

    limits = {"restorer": 1.0, "runner, monitored, scaffolds": 0.9}
    results = [result(name, first, limits.get(name)) for name in ways]
    results += [result(name, *FURTHER[name]) for name in ways if name in FURTHER]
    for name in ways:
        ratio = statistics.median(peaks[name]) / statistics.median(peaks[first])
        limit = 1.1 if name.startswith("r") else None
        results.append(Result(f"{case.name}: memory", name, "MiB", peaks[name], ratio, limit))
    return shown(results)


def _alone(function: Callable[[Case, str], T], case: Case, way: str) -> Callable[[], T]:
    """Returns a function that calls `function` in a new process, which need not import anything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.restoration_cases"])

    def measure() -> T:
        with context.Pool(1) as pool:
            return pool.apply(function, (case, way))

    return measure


def cost(case: Case, way: str) -> tuple[float, float]:
    """Does it once; returns the seconds and the peak of memory over what there was, in MiB."""
    steps = WAYS[way](case)
    gc.collect()
    # Linux alone can forget an earlier peak.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    seconds = steps.seconds()
    return seconds, memory("VmHWM") - before


def planning(count: int, limit: float, repeats: int) -> list[Result]:
    """Measures planning `count` variables from three sources."""
    gc.freeze()  # As a command does after its imports.
    names = {part: [f"{part}/layer_{i}/kernel" for i in range(count // 3)] for part in PARTS}
    variables = [
        VariableSpec(TensorSpec(name, (16, 16), "float32"), StateClass.weights, True, "Const")
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
        start = time.process_time()
        make_plan(variables, scaffolds, LocatedSources(sources))
        values.append(time.process_time() - start)
    case = f"planning {count:,} variables"
    return shown([Result(case, "make_plan", "s CPU", tuple(values), limit=limit)])


def planning_by_rules(repeats: int) -> list[Result]:
    """Measures planning 1,200 variables by 31 rules, and by whole names in no more time."""
    pairs = {
        f"layer_{block}/part{role}/kernel": f"blocks.{block}.module{role}.weight"
        for block in range(40)
        for role in range(30)
    }
    spec = TensorSpec("", (8, 8), "float32")
    variables = [
        VariableSpec(replace(spec, name=name), StateClass.weights, True, "Const") for name in pairs
    ]
    tensors = {name: replace(spec, name=name) for name in pairs.values()}
    roles = {f"{{block/}}part{role}/": f"{{block/}}module{role}. | torch" for role in range(30)}
    keys: dict[str, dict[str, Any]] = {
        "31 rules": {"rules": {"layer_{n}/": "blocks.{n}.", **roles}},
        "whole names": {"rename": pairs, "convert": {"*": "torch"}},
    }
    results: list[Result] = []
    for name, key in keys.items():
        scaffold = ScaffoldConfig(variables=VariablesConfig(include=["*"]), **key)
        values = []
        for _ in range(repeats):
            start = time.process_time()
            located = LocatedSources({"net": CheckpointSpec("net", 1, tensors)})
            make_plan(variables, {"net": scaffold}, located).require_sound()
            values.append(time.process_time() - start)
        ratio = statistics.median(values) / results[0].median if results else None
        limit = None if ratio is None else 1.0
        case = "planning 1,200 variables"
        results.append(Result(case, name, "s CPU", tuple(values), ratio=ratio, limit=limit))
    return shown(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default 1)")
    parser.add_argument(
        "--only", nargs="*", help="cases: bundles variable slice parts many planning"
    )
    parser.add_argument("--data", type=Path, help="where 1 GB of checkpoints goes for a while")
    args = parser.parse_args(arguments)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=args.data) as directory:
        for key, case in cases(args.scale, Path(directory)).items():
            if args.only and key not in args.only:
                continue
            case.save()
            results += speed(case, args.repeats, monitored=key == "bundles")
    if not args.only or "planning" in args.only:
        results += planning(50_000, 1.0, args.repeats)
        results += planning_by_rules(args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
