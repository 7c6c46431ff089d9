"""Measures the savings of a sweep, its cost per trial, and the gain of a second process."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, compare, options, report, shown

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ("-m", "runner", "--config-dir", str(ROOT / "tests" / "samples" / "conf"))
# What this process finds besides, such as peers that are installed in a folder, first of all ROOT.
PATHS = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
TRIALS = 8
TINY = (*RUNNER, "+experiment=tiny")
SEEDS = "seed=" + ",".join(map(str, range(TRIALS)))
DATABASE = "mlflow.db"
RATES = "optimizer.learning_rate=1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e-1,3e-1"
ONE_SWEEP_LIMIT = 0.3
KERAS_TUNER_LIMIT = 0.8
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
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return time.monotonic() - begun


@contextmanager
def fresh(prepared: Path) -> Iterator[Path]:
    """Gives a folder with a database without runs of sweeps, so that all repeats find the same."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(prepared / DATABASE, name)
        yield Path(name)


def one_sweep(prepared: Path) -> float:
    """Returns the seconds of eight short trials in one sweep, figures included."""
    with fresh(prepared) as folder:
        return run(folder, *TINY, "-m", SEEDS)


def separate_processes(prepared: Path) -> float:
    """Returns the seconds of the trials as separate commands, one after the other."""
    with fresh(prepared) as folder:
        return sum(run(folder, *TINY, f"seed={seed}") for seed in range(TRIALS))


@dataclass(frozen=True)
class Trial:
    """The time from a trial's start to the next one's: the median, without the first.

    Attributes:
      seconds: by the clock.
      processor: of the process's processor time, in seconds.
    """

    seconds: float
    processor: float


def a_trial(prepared: Path, *arguments: str) -> Trial:
    """Measures trials that write their times to `{file}`."""
    with fresh(prepared) as folder:
        file = folder / "starts"
        run(folder, *(argument.format(file=file) for argument in arguments))
        starts = [[float(time) for time in line.split()] for line in file.read_text().splitlines()]

    def median(times: Iterable[float]) -> float:
        return statistics.median([b - a for a, b in itertools.pairwise(times)][1:])

    return Trial(*(median(times) for times in zip(*starts, strict=True)))


def trial_of_a_sweep(prepared: Path) -> Trial:
    """Measures a trial in a sweep, with all that the runner does for it."""
    callback = "+hydra.callbacks.starts"
    return a_trial(
        prepared,
        *TINY,
        "-m",
        SEEDS,
        "sweep.figures=false",
        f"{callback}._target_=benchmarks.trial_times.StartTimes",
        f"{callback}.file='{{file}}'",
    )


def bare_trial(prepared: Path) -> Trial:
    """Measures the same, built and trained by TensorFlow alone."""
    return a_trial(prepared, "-m", "benchmarks.trial_times", "{file}", str(TRIALS))


def launched(prepared: Path, steps: int, count: int) -> float:
    """Returns the seconds of four trials of `lstm_cnn` from scratch, launched by joblib.

    With a `count` of 1 joblib starts no process: the trials run in the sweeping one, so that
    TensorFlow and MLflow are imported once, and not by each process. Each trial computes and reads
    its data in one thread, so that one core is all that it can use.
    """
    with fresh(prepared) as folder:
        return run(
            folder,
            *RUNNER,
            "-m",
            "+experiment=lstm_cnn",
            "seed=1,2,3,4",
            f"train.steps={steps}",
            "scaffold@scaffolds.cnn=random",
            "scaffold@scaffolds.lstm=random",
            "session.intra_op_threads=1",
            "session.inter_op_threads=1",
            "sweep.figures=false",
            "hydra/launcher=processes",
            f"hydra.launcher.n_jobs={count}",
        )


def short_trials(prepared: Path, repeats: int, steps: int) -> list[Result]:
    """Compares one sweep with as many commands."""
    ways: dict[str, Callable[[], float]] = {
        "eight commands": partial(separate_processes, prepared),
        "one sweep": partial(one_sweep, prepared),
    }
    return compare("eight short trials", "s", ways, {"one sweep": ONE_SWEEP_LIMIT}, repeats)


def keras_tuner(prepared: Path, repeats: int, steps: int) -> list[Result]:
    """Compares a sweep with a search by KerasTuner and MLflow's autologging."""
    if any(importlib.util.find_spec(name) is None for name in ("keras_tuner", "tensorboard")):
        print("eight short trials by KerasTuner: pip install keras-tuner tensorboard")
        return []

    def way(*arguments: str) -> Callable[[], float]:
        def seconds() -> float:
            with fresh(prepared) as folder:
                return run(folder, *arguments)

        return seconds

    ways = {
        "KerasTuner": way("-m", "benchmarks.keras_tuner_search", str(TRIALS)),
        "one sweep": way(*TINY, "-m", RATES),
    }
    case = "eight short trials with MLflow"
    return compare(case, "s", ways, {"one sweep": KERAS_TUNER_LIMIT}, repeats)


def overhead(prepared: Path, repeats: int, steps: int) -> list[Result]:
    """Measures what a trial takes beyond building and training.

    Its processor time tells more where other processes share the machine.
    """
    trials = [(bare_trial(prepared), trial_of_a_sweep(prepared)) for _ in range(repeats)]
    results = []
    for what, attribute in (("clock", "seconds"), ("processor", "processor")):
        bare, swept = (
            tuple(getattr(trial, attribute) for trial in way) for way in zip(*trials, strict=True)
        )
        beyond = tuple(ours - theirs for ours, theirs in zip(swept, bare, strict=True))
        limit = OVERHEAD_LIMIT_S if attribute == "seconds" else None
        results += shown(
            [
                Result(f"a short trial, {what}", "TensorFlow alone", "s", bare),
                Result(f"a short trial, {what}", "in a sweep", "s", swept),
                Result(
                    f"beyond building and training, {what}", "in a sweep", "s", beyond, limit=limit
                ),
            ]
        )
    return results


def two_processes(prepared: Path, repeats: int, steps: int) -> list[Result]:
    """Compares two processes of joblib's with the sweeping one alone."""
    ways: dict[str, Callable[[], float]] = {
        "in the sweeping process": partial(launched, prepared, steps, 1),
        "in two of joblib's": partial(launched, prepared, steps, 2),
    }
    case = f"four trials of {steps} steps"
    return compare(case, "s", ways, {"in two of joblib's": TWO_PROCESSES_LIMIT}, repeats)


CASES = {
    "short-trials": short_trials,
    "keras-tuner": keras_tuner,
    "overhead": overhead,
    "processes": two_processes,
}


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=5)
    parser.add_argument("--steps", type=int, default=2000, help="of the trials of joblib's")
    parser.add_argument("--only", choices=CASES, help="one of the cases; all by default")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        prepared = Path(name)
        run(prepared, *TINY)  # Reads files from the disk, and creates MLflow's database.
        for case in [arguments.only] if arguments.only else CASES:
            results += CASES[case](prepared, arguments.repeats, arguments.steps)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
