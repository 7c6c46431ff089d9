"""Steps per second of a cluster on this machine, against one process.

    python -m benchmarks.cluster [--experiment NAME] [--steps N] [OVERRIDE ...]

Every case is a run of `python -m runner`, timed from its first logged step to its last, so that
starting and the last evaluation do not count. A step of the cluster is one update; asynchronous
workers make one each from their own batch, synchronous ones make one together.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

_LOGGED = re.compile(r"(?:\[chief\] )?step (\d+)/\d+  ")


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
      name: what it is called.
      overrides: those of the command.
      batches: how many batches one step takes.
    """

    name: str
    overrides: tuple[str, ...]
    batches: int = 1


_LOCAL = ("cluster=local", "cluster.recovery_wait_secs=0.2")
CASES = (
    Case("one process", ()),
    Case("1 worker, 1 ps", (*_LOCAL, "cluster.workers=1")),
    Case("2 workers, 1 ps, asynchronous", _LOCAL),
    Case("2 workers, 1 ps, synchronous", (*_LOCAL, "cluster.synchronous=true"), 2),
)


def measure(case: Case, experiment: str, steps: int, overrides: Sequence[str]) -> float:
    """Returns the steps per second of one run.

    Raises:
      RuntimeError: when it fails, or logs fewer than two steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "runner", f"+experiment={experiment}"),
                *("tracking=none", f"run_dir={folder}/runs", f"train.steps={steps}"),
                *(f"train.log_every={max(steps // 20, 1)}", f"train.evaluate_every={steps * 2}"),
                *(f"train.checkpoint_every={steps * 2}", *overrides, *case.overrides),
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
                    seen.append((int(match[1]), time.perf_counter()))
        if process.wait() or len(seen) < 2:
            raise RuntimeError("".join(lines))
    # A cluster's first steps are those of the chief alone.
    start = len(seen) // 3
    return (seen[-1][0] - seen[start][0]) / (seen[-1][1] - seen[start][1])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experiment", default="digits_cnn")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    print(f"{arguments.experiment}, {arguments.steps} steps {' '.join(arguments.overrides)}")
    print(f"{'':32}{'steps/s':>9}{'batches/s':>11}{'ratio':>7}")
    alone = None
    for case in CASES:
        rate = measure(case, arguments.experiment, arguments.steps, arguments.overrides)
        alone = alone or rate
        batches = rate * case.batches
        print(f"{case.name:32}{rate:9.1f}{batches:11.1f}{batches / alone:7.2f}", flush=True)


if __name__ == "__main__":
    main()
