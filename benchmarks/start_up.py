"""From the command to the first step, and to an answer without one: `-m benchmarks.start_up`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, compare, options, report, shown

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = "+experiment=lstm_cnn"
# The sources are other experiments, which would be trained first.
FROM_SCRATCH = ("scaffold@scaffolds.cnn=random", "scaffold@scaffolds.lstm=random")
ANSWERS = {
    "--help": ("--help",),
    "--cfg job": ("--cfg", "job", EXPERIMENT),
    "a mistake": (EXPERIMENT, "train.stepz=3"),
}
CPU_LIMIT_S = 1.0


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts Python in a folder."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def first_step(folder: Path, *arguments: str) -> float:
    """Returns the seconds from the start of the process to the end of its first step."""
    file = Path(tempfile.mkdtemp(dir=folder)) / "first"
    begun = time.monotonic()
    process = start(folder, *(argument.format(file=file) for argument in arguments))
    if process.wait() != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed")
    return float(file.read_text()) - begun


def command(tracking: str) -> Sequence[str]:
    """Returns the arguments of a run of one step, whose hook writes down when it was done."""
    return (
        "-m",
        "runner",
        EXPERIMENT,
        *FROM_SCRATCH,
        f"tracking={tracking}",
        "train.steps=1",
        "+hooks.first._target_=benchmarks.first_step.FirstStep",
        "+hooks.first.file={file}",
    )


def cpu_seconds(folder: Path, arguments: Sequence[str]) -> float:
    """Returns the processor time of a command."""
    process = start(folder, "-m", "runner", *arguments)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measure(folder: Path, repeats: int) -> list[Result]:
    """Returns the results of all ways."""
    ways: dict[str, Callable[[], float]] = {
        "bare script": partial(first_step, folder, "-m", "benchmarks.first_step", "{file}"),
        "runner, tracking=none": partial(first_step, folder, *command("none")),
        "runner, tracking=mlflow": partial(first_step, folder, *command("mlflow")),
    }
    for way in ways.values():
        way()  # Reads files from the disk, and creates MLflow's database.
    limits = dict.fromkeys(list(ways)[1:], 1.15)
    results = compare("to the first step", "s", ways, limits, repeats)
    for name, arguments in ANSWERS.items():
        values = tuple(cpu_seconds(folder, arguments) for _ in range(repeats))
        results += shown([Result("CPU of the answer", name, "s", values, limit=CPU_LIMIT_S)])
    return results


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    arguments = options(__doc__, repeats=5).parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = measure(Path(name), arguments.repeats)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
