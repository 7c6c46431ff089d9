"""From the command to the first step, and to an answer without one: `-m benchmarks.start_up`.

Real models start from a file of weights, with tracking: the runner's command and the script that
does the same with Keras and MLflow alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.harness import Result, options, report, shown

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
SCRIPT = ("-m", "benchmarks.pretrained_models")
# The last one, which saves 3 GB twice at its end, runs where it is asked for.
CASES = ("lstm_cnn", "ResNet50", "BERT", "MobileNetV2", "1GB")


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts Python in a folder."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def first_step(folder: Path, *arguments: str) -> tuple[float, float, float]:
    """Returns what a process takes from its start to the end of its first step.

    That is the seconds by the clock, those of the processor, and the peak of memory in MiB.
    """
    file = Path(tempfile.mkdtemp(dir=folder)) / "first"
    begun = time.monotonic()
    process = start(folder, *(argument.format(file=file) for argument in arguments))
    if process.wait() != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed")
    ended, cpu, peak = map(float, file.read_text().split())
    return ended - begun, cpu, peak


def command(*overrides: str) -> Sequence[str]:
    """Returns the arguments of a short run, whose hook writes down when its first step was done."""
    return (
        "-m",
        "runner",
        *overrides,
        "resume=never",
        "train.steps=2",
        "+hooks.first._target_=benchmarks.first_step.FirstStep",
        "+hooks.first.file={file}",
    )


def compared(
    case: str, folder: Path, ways: Mapping[str, Sequence[str]], limit: float, repeats: int
) -> list[Result]:
    """Compares the first steps of commands, in turns; the first is the base of the others."""
    measured: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    if not (folder / "mlflow.db").exists():
        for arguments in ways.values():
            first_step(folder, *arguments)  # Reads files from the disk, and creates the database.
    for _ in range(repeats):
        for way, arguments in ways.items():
            measured[way].append(first_step(folder, *arguments))
    results = []
    for at, (unit, most) in enumerate((("s", limit), ("s CPU", None), ("MiB", 1.1))):
        base = statistics.median(values[at] for values in next(iter(measured.values())))
        for way, taken in measured.items():
            values = tuple(value[at] for value in taken)
            ratio = statistics.median(values) / base
            wanted = None if way == next(iter(ways)) else most
            results.append(Result(f"{case}: first step", way, unit, values, ratio, wanted))
    return shown(results)


def cpu_seconds(folder: Path, arguments: Sequence[str]) -> float:
    """Returns the processor time of a command."""
    process = start(folder, "-m", "runner", *arguments)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measure(folder: Path, repeats: int) -> list[Result]:
    """Returns the results of the shipped experiment, and of answers without a step."""
    ways = {
        "bare script": ("-m", "benchmarks.first_step", "{file}"),
        **{
            f"runner, tracking={tracking}": command(
                EXPERIMENT, *FROM_SCRATCH, f"tracking={tracking}"
            )
            for tracking in ("none", "mlflow")
        },
    }
    results = compared("lstm_cnn", folder, ways, 1.15, repeats)
    for name, arguments in ANSWERS.items():
        values = tuple(cpu_seconds(folder, arguments) for _ in range(repeats))
        results += shown([Result("CPU of the answer", name, "s", values, limit=CPU_LIMIT_S)])
    return results


def of_real_models(folder: Path, names: Iterable[str], repeats: int) -> list[Result]:
    """Compares the starts of models from files of weights, which are written before."""
    experiments = folder / "conf" / "experiment"
    experiments.mkdir(parents=True)
    results = []
    for name in names:
        weights = folder / f"{name}.weights.h5"
        if start(folder, *SCRIPT, "save", name, str(weights)).wait() != 0:
            raise RuntimeError(f"{name} could not be saved")
        document = {
            "defaults": [{"/task": "classification"}, "_self_"],
            "name": name,
            "model": {"_target_": "benchmarks.pretrained_models.build", "name": name},
            "data": {"_target_": "benchmarks.pretrained_models.Batches", "name": name},
            "scaffolds": {
                "all": {"variables": {"include": ["*"]}, "checkpoint": str(weights)},
            },
        }
        text = "# @package _global_\n" + yaml.safe_dump(document, sort_keys=False)
        (experiments / f"{name}.yaml").write_text(text)
        ways = {
            "Keras's fit": (*SCRIPT, "fit", name, str(weights), "{file}"),
            "runner": command("--config-dir", "conf", f"+experiment={name}"),
        }
        results += compared(name, folder, ways, 1.0, repeats)
    return results


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--only", nargs="*", default=CASES[:-1], help=" ".join(CASES))
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        if CASES[0] in arguments.only:
            results += measure(Path(name), arguments.repeats)
        models = [model for model in CASES[1:] if model in arguments.only]
        results += of_real_models(Path(name), models, arguments.repeats)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
