"""Measures at unusual sizes: a checkpoint of 20 GB, a sweep of 10,000 trials, a long journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Result, options, report, shown
from benchmarks.tracking import NO_STORE, opened
from runner.config.choices import Goal
from runner.sweeps.objectives import Objective
from runner.sweeps.results import columns, rows
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from runner.tracking.journal import Metrics, encode_line
from runner.tracking.tracking_directory import TrackingDirectory

LARGE = 20 * 10**9
TRIALS = 10_000
METRICS = 10_000_000


def inspected(folder: Path, repeats: int) -> list[Result]:
    """Lists the tensors of a sparse file of 20 GB, in a separate process."""
    path = folder / "large.safetensors"
    shape = [LARGE // 4096, 1024]
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, LARGE // 4096 * 4096]}
    header = json.dumps({"kernel": entry}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + LARGE // 4096 * 4096)
    seconds, memory = [], []
    for _ in range(repeats):
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", "inspect", str(path)], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError("runner inspect failed")
        seconds.append(time.monotonic() - begun)
        memory.append(usage.ru_maxrss / 1024)
    case = "inspecting a checkpoint of 20 GB"
    return shown(
        [
            Result(case, "time", "s", tuple(seconds), limit=1.0),
            Result(case, "peak memory", "MiB", tuple(memory), limit=200),
        ]
    )


def table_of_trials(repeats: int) -> list[Result]:
    """Makes the table at the end of a sweep of 10,000 trials."""
    trials = [
        Attempt(
            trial=number,
            values={"seed": str(number), "optimizer.learning_rate": f"{1 / (number + 3):.6f}"},
            status=Status.FINISHED,
            metrics={"loss": 1 / (number + 1)},
        )
        for number in range(TRIALS)
    ]
    values = []
    for _ in range(repeats):
        begun = time.perf_counter()
        columns(rows(trials, [Objective("validation/loss", Goal.minimize)]))
        values.append(time.perf_counter() - begun)
    return shown([Result(f"table of {TRIALS:,} trials", "time", "s", tuple(values), limit=1.0)])


def resumed(folder: Path, repeats: int) -> list[Result]:
    """Opens and rewinds a journal of 10 million metrics, and appends to it."""
    files = TrackingDirectory(folder / "run")
    files.journal.mkdir(parents=True)
    line = encode_line(Metrics({f"metric_{index}": 0.5 for index in range(10)}, 1000, 0))
    with (files.journal / "0001.journal").open("wb") as file:
        for _ in range(METRICS // 10 // 1000):
            file.write(line * 1000)
    values = []
    for _ in range(repeats):
        begun = time.perf_counter()
        tracker = opened(folder / "run", NO_STORE)
        tracker.rewind(500)
        tracker.log_metrics({"metric_0": 0.5}, 501)
        values.append(time.perf_counter() - begun)
        tracker.close(Status.FINISHED)
    return shown([Result(f"resuming {METRICS:,} metrics", "time", "s", tuple(values), limit=2.0)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    args = options(__doc__, repeats=5).parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        results = [
            *inspected(Path(name), args.repeats),
            *table_of_trials(args.repeats),
            *resumed(Path(name), args.repeats),
        ]
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
