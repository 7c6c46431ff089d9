"""What a sweep saves, what it adds to a trial, and what a second process brings."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, compare, options, report

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ("-m", "runner", "--config-dir", str(ROOT / "tests" / "tiny" / "conf"), "resume=never")
TRIALS = 8
TINY = (*RUNNER, "+experiment=tiny")
SEEDS = "seed=" + ",".join(map(str, range(TRIALS)))
ONE_SWEEP_LIMIT = 0.35
OVERHEAD_LIMIT_S = 0.5
# At least 1.6 times as fast.
TWO_PROCESSES_LIMIT = 1 / 1.6


def run(folder: Path, *arguments: str) -> float:
    """Runs Python in a folder and returns the seconds it took.

    Raises:
      RuntimeError: it failed.
    """
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return time.monotonic() - begun


def one_sweep(folder: Path) -> float:
    """Returns the seconds of eight short trials in one sweep, figures included."""
    return run(folder, *TINY, "-m", SEEDS)


def separate_processes(folder: Path) -> float:
    """Returns the seconds of the same trials, each a command."""
    return sum(run(folder, *TINY, f"seed={seed}") for seed in range(TRIALS))


def seconds_of_a_trial(folder: Path, *arguments: str) -> float:
    """Returns the median time from one trial's start to the next one's, without the first."""
    file = Path(tempfile.mkdtemp(dir=folder)) / "starts"
    run(folder, *(each.format(file=file) for each in arguments))
    starts = [float(line) for line in file.read_text().split()]
    between = [later - earlier for earlier, later in itertools.pairwise(starts)]
    return statistics.median(between[1:])


def trial_of_a_sweep(folder: Path) -> float:
    """Returns the seconds of a trial in a sweep, with all that the runner does for it."""
    callback = "+hydra.callbacks.starts"
    return seconds_of_a_trial(
        folder,
        *(*TINY, "-m", SEEDS, "sweep.figures=false"),
        f"{callback}._target_=benchmarks.trial_times.StartTimes",
        f"{callback}.file='{{file}}'",
    )


def bare_trial(folder: Path) -> float:
    """Returns the seconds in which TensorFlow alone builds and trains the same."""
    return seconds_of_a_trial(folder, "-m", "benchmarks.trial_times", "{file}", str(TRIALS))


def joblib_processes(folder: Path, steps: int, count: int) -> float:
    """Returns the seconds of four trials of `lstm_cnn` from scratch.

    Each keeps to one thread, as trials do that share a machine.
    """
    return run(
        folder,
        *(*RUNNER, "-m", "+experiment=lstm_cnn", "seed=1,2,3,4", f"train.steps={steps}"),
        *("scaffold@scaffolds.cnn=random", "scaffold@scaffolds.lstm=random"),
        *("session.intra_op_threads=1", "session.inter_op_threads=-1", "sweep.figures=false"),
        *("hydra/launcher=processes", f"hydra.launcher.n_jobs={count}"),
    )


def short_trials(folder: Path, repeats: int, steps: int) -> list[Result]:
    """Compares one sweep with as many commands."""
    ways: dict[str, Callable[[], float]] = {
        "eight commands": partial(separate_processes, folder),
        "one sweep": partial(one_sweep, folder),
    }
    return compare("eight short trials", "s", ways, {"one sweep": ONE_SWEEP_LIMIT}, repeats)


def overhead(folder: Path, repeats: int, steps: int) -> list[Result]:
    """Measures what a trial takes beyond building and training."""
    ways: dict[str, Callable[[], float]] = {
        "TensorFlow alone": partial(bare_trial, folder),
        "in a sweep": partial(trial_of_a_sweep, folder),
    }
    bare, swept = compare("a short trial", "s", ways, {}, repeats)
    beyond = tuple(ours - theirs for ours, theirs in zip(swept.values, bare.values, strict=True))
    case = "a trial beyond building and training"
    return [bare, swept, Result(case, "in a sweep", "s", beyond, limit=OVERHEAD_LIMIT_S)]


def two_processes(folder: Path, repeats: int, steps: int) -> list[Result]:
    """Compares two processes of joblib's with one."""
    ways: dict[str, Callable[[], float]] = {
        "one joblib process": partial(joblib_processes, folder, steps, 1),
        "two joblib processes": partial(joblib_processes, folder, steps, 2),
    }
    case = f"four trials of {steps} steps"
    return compare(case, "s", ways, {"two joblib processes": TWO_PROCESSES_LIMIT}, repeats)


CASES = {"short-trials": short_trials, "overhead": overhead, "processes": two_processes}


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=5)
    parser.add_argument("--steps", type=int, default=600, help="of the trials of joblib's")
    parser.add_argument("--only", choices=CASES, help="one of the cases; all by default")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, *TINY)  # Files are read from the disk, MLflow's database is made.
        for case in [arguments.only] if arguments.only else CASES:
            results += CASES[case](folder, arguments.repeats, arguments.steps)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
