"""Compares ways of doing one thing, and prints results as they come."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """The result of one way of a case.

    Attributes:
      case: what is done.
      way: how.
      unit: of the values, e.g. `s`.
      values: one for every repeat.
      ratio: how it compares with the case's first way, of the medians unless the values were taken
        in pairs; None where there is nothing to compare.
      limit: what the ratio, or without one the median, must not exceed; None when it is only shown.
    """

    case: str
    way: str
    unit: str
    values: tuple[float, ...]
    ratio: float | None = None
    limit: float | None = None

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the result is within its limit; None without a limit."""
        if self.limit is None:
            return None
        return (self.median if self.ratio is None else self.ratio) <= self.limit


def compare(
    case: str,
    unit: str,
    ways: Mapping[str, Callable[[], float]],
    limits: Mapping[str, float],
    repeats: int,
) -> list[Result]:
    """Measures every way `repeats` times, in turns, so that a busy machine is busy for all.

    Args:
      case: what is done.
      unit: of what the ways return.
      ways: name -> does it once and returns how long it took, or how much; the first is what the
        others are compared with.
      limits: name -> the greatest ratio that is wanted.
      repeats: how often.
    """
    values: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, measure in ways.items():
            values[way].append(measure())
    base = statistics.median(next(iter(values.values())))
    return shown(
        Result(case, way, unit, tuple(times), statistics.median(times) / base, limits.get(way))
        for way, times in values.items()
    )


def machine() -> str:
    """Returns the machine and the versions in one line."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, {platform.system()}, "
        f"Python {platform.python_version()}, TensorFlow {metadata.version('tensorflow')}, "
        f"NumPy {metadata.version('numpy')}"
    )


def memory(key: str) -> float:
    """Returns `VmRSS` or `VmHWM`, the memory of this process or its peak, in MiB; on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def shown(results: Iterable[Result]) -> list[Result]:
    """Prints a line for every result, and returns the results."""
    shown = list(results)
    for result in shown:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        unit = result.unit if result.ratio is None else ""
        limit = "" if result.limit is None else f"at most {result.limit:g} {unit}".rstrip()
        met = {None: "", True: "met", False: "MISSED"}[result.met]
        value = f"{result.median:,.3f} {result.unit}"
        line = f"{result.case:<44} {result.way:<30} {value:>16} {ratio:>6}  {limit:<14} {met}"
        print(line.rstrip(), flush=True)
    return shown


def options(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """Returns a parser of what every benchmark is told: `--repeats` and `--json`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser


def report(results: Sequence[Result], path: Path | None) -> int:
    """Prints the machine, writes the results where a path is given; 1 when a limit is missed."""
    print(machine(), flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(result) | {"median": result.median, "met": result.met} for result in results]
        path.write_text(json.dumps({"machine": machine(), "results": rows}, indent=2) + "\n")
    return int(any(result.met is False for result in results))
