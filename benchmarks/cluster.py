"""Batches per second of a cluster on this machine, against one process.

    python -m benchmarks.cluster [--experiment NAME] [--steps N] [--repeats N] [OVERRIDE ...]

Every case is a run of `python -m runner`, timed from its first logged steps to its last, so that
starting and the last evaluation do not count; the values are of parts of it. A step of the cluster
is one update; workers beside parameter servers make one each from their own batch, those of mode
`collective` one together from theirs.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import Result, options, report, shown

_LOGGED = re.compile(r"(?:\[chief\] )?step (\d+)/\d+  ")


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
      name: what it is called.
      overrides: the overrides of the command.
    """

    name: str
    overrides: tuple[str, ...]


_LOCAL = ("cluster=local", "cluster.recovery_wait_secs=0.2")
CASES = (
    Case("one process", ()),
    Case("1 worker, 1 ps", (*_LOCAL, "cluster.workers=1")),
    Case("2 workers, 1 ps", _LOCAL),
    # They share each batch.
    Case("2 workers, collective", ("cluster=collective", "cluster.recovery_wait_secs=0.2")),
)


def measure(case: Case, experiment: str, steps: int, overrides: Sequence[str]) -> list[float]:
    """Returns the batches per second of parts of one run.

    Raises:
      RuntimeError: when it fails, or logs fewer than four steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runner",
                f"+experiment={experiment}",
                "tracking=none",
                f"run_dir={folder}/runs",
                f"train.steps={steps}",
                f"train.log_every={max(steps // 20, 1)}",
                f"train.evaluate_every={steps * 2}",
                f"train.checkpoint_every={steps * 2}",
                *overrides,
                *case.overrides,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seen: list[tuple[int, float]] = []
        lines = []
        if process.stdout is not None:
            for line in process.stdout:
                lines.append(line)
                match = _LOGGED.match(line)
                if match:
                    step = int(match[1])
                    if seen and step < seen[-1][0]:
                        seen.clear()  # That was the training of a source.
                    seen.append((step, time.perf_counter()))
        if process.wait() or len(seen) < 4:
            raise RuntimeError("".join(lines))
    # The chief takes a cluster's first steps alone.
    logged = pairwise(seen[len(seen) // 3 :: 2])
    return [(after - before) / (end - start) for (before, start), (after, end) in logged]


def main() -> int:
    """Prints a table, one process first."""
    parser = options("Measures clusters on this machine.", repeats=1)
    parser.add_argument("--experiment", default="digits_cnn")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    name = f"{args.experiment}, {args.steps} steps {' '.join(args.overrides)}".rstrip()
    results: list[Result] = []
    for case in CASES:
        values: list[float] = []
        for _ in range(args.repeats):
            values += measure(case, args.experiment, args.steps, args.overrides)
        base = results[0].median if results else statistics.median(values)
        ratio = statistics.median(values) / base
        results += shown([Result(name, case.name, "batches/s", tuple(values), ratio)])
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
