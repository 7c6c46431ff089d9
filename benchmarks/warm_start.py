"""Cost of `runner.warm_start` beside a loop of assigns: `python -m benchmarks.warm_start`.

ResNet-50 is restored in a new process each time, as a program does once: processor time, and the
peak of memory besides the model. What building the model left behind is collected before. A `.pt`
file of 1 GB is planned, and restored beside a `.safetensors` file of the same tensors.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import safetensors.numpy
import tensorflow as tf

import runner
from benchmarks.harness import Result, memory, options, report, shown
from runner.internals.keras import saved_groups
from tests.support import torch_files

# The largest tensor of ResNet-50 has 9 MB.
MEMORY_LIMIT = 2 * 9 + 64
TIME_LIMIT = 1.5
LARGE = {f"layer{number}/kernel": (1024, 4096) for number in range(64)}


@dataclass(frozen=True)
class Cost:
    """The cost of a call.

    Attributes:
      cpu: seconds of all threads of the process.
      memory: the peak of its memory over what it had before, in MiB.
      peak: the peak of its memory from then on, in MiB.
      imports: the seconds of processor time that importing took before.
      plan: the seconds of planning.
    """

    cpu: float
    memory: float
    peak: float
    imports: float = 0.0
    plan: float = 0.0


def cost(call: Callable[[], object], imports: float = 0.0, plan: float = 0.0) -> Cost:
    """Measures a call; Linux alone can forget an earlier peak of memory."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, start = memory("VmRSS"), time.process_time()
    call()
    taken = time.process_time() - start
    peak = memory("VmHWM")
    return Cost(taken, peak - before, peak, imports, plan)


def resnet() -> keras.Model:
    """Builds a ResNet-50 with random values."""
    return keras.applications.ResNet50(weights=None)


def warm_start(path: Path) -> Cost:
    """Measures `runner.warm_start` of a ResNet-50."""
    model = resnet()
    start = time.process_time()
    function = runner.warm_start  # Imports it.
    imports = time.process_time() - start
    return cost(lambda: function(model, _scaffolds(path)), imports)


def assigns(path: Path) -> Cost:
    """Measures a loop that reads and assigns one value after the other."""
    model = resnet()
    if path.suffix == ".safetensors":

        def loop() -> None:
            with safetensors.safe_open(path, framework="np") as file:
                for variable in model.variables:
                    variable.assign(file.get_tensor(variable.path))
    else:
        places = {
            f"{group}/vars/{number}": variable
            for group, (_, variables) in saved_groups(model).items()
            for number, variable in variables.items()
        }

        def loop() -> None:
            with h5py.File(path) as file:
                for place, variable in places.items():
                    variable.assign(file[place][()])

    return cost(loop)


def load_weights(path: Path) -> Cost:
    """Measures Keras's `load_weights`."""
    model = resnet()
    return cost(lambda: model.load_weights(path))


def large(path: Path) -> Cost:
    """Measures planning and restoring a file of 1 GB into a mapping of variables."""
    variables = {name: tf.Variable(tf.zeros(shape)) for name, shape in LARGE.items()}
    start = time.process_time()
    runner.warm_start  # noqa: B018 - it is imported.
    imports = time.process_time() - start
    start = time.perf_counter()
    runner.plan(variables, _scaffolds(path))
    plan = time.perf_counter() - start
    return cost(lambda: runner.warm_start(variables, _scaffolds(path)), imports, plan)


def large_assigns(path: Path) -> Cost:
    """Measures a loop that reads and assigns one value of 1 GB after the other."""
    variables = {name: tf.Variable(tf.zeros(shape)) for name, shape in LARGE.items()}

    def loop() -> None:
        with safetensors.safe_open(path, framework="np") as file:
            for name, variable in variables.items():
                variable.assign(file.get_tensor(name))

    return cost(loop)


def _scaffolds(path: Path) -> dict[str, Any]:
    return {"all": {"variables": {"include": ["*"]}, "checkpoint": str(path)}}


Way = tuple[Callable[[Path], Cost], Path]


def costs(ways: Mapping[str, Way], repeats: int) -> dict[str, list[Cost]]:
    """Measures every way `repeats` times, in turns, each in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.warm_start"])
    measured: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (way, path) in ways.items():
            with context.Pool(1) as pool:
                measured[name].append(pool.apply(way, (path,)))
    return measured


def of_resnet(folder: Path, repeats: int) -> list[Result]:
    """Compares warm starts of a ResNet-50 with loops of assigns and with `load_weights`."""
    model = resnet()
    files = {suffix: folder / f"resnet.{suffix}" for suffix in ("safetensors", "weights.h5", "pt")}
    arrays = {variable.path: np.asarray(variable) for variable in model.variables}
    safetensors.numpy.save_file(arrays, files["safetensors"])
    torch_files.save_arrays(files["pt"], arrays)
    model.save_weights(files["weights.h5"])
    results = []
    # Without PyTorch nothing else reads a .pt file, so its loop reads the same tensors elsewhere.
    for suffix, loop in (("safetensors",) * 2, ("weights.h5",) * 2, ("pt", "safetensors")):
        ways: dict[str, Way] = {
            f"loop of assigns (.{loop})": (assigns, files[loop]),
            "runner.warm_start": (warm_start, files[suffix]),
        }
        if suffix == "weights.h5":
            ways["load_weights"] = (load_weights, files[suffix])
        measured = costs(ways, repeats)
        base = statistics.median(taken.cpu for taken in next(iter(measured.values())))
        for name, taken in measured.items():
            case, is_ours = f"ResNet-50 in .{suffix}", name == "runner.warm_start"
            cpu = tuple(each.cpu for each in taken)
            peaks = tuple(each.memory for each in taken)
            ratio, limit = statistics.median(cpu) / base, TIME_LIMIT if is_ours else None
            results.append(Result(case, name, "s CPU", cpu, ratio, limit))
            limit = MEMORY_LIMIT if is_ours else None
            results.append(Result(f"{case}: memory", name, "MiB", peaks, limit=limit))
            results.append(_peak(case, name, measured))
            if is_ours:
                imports = tuple(each.imports for each in taken)
                results.append(Result(case, "its import, once", "s CPU", imports))
    return shown(results)


def _peak(case: str, name: str, measured: Mapping[str, Sequence[Cost]]) -> Result:
    """Compares the peak of the memory of a way's process with that of the first way."""
    peaks = tuple(taken.peak for taken in measured[name])
    base = statistics.median(taken.peak for taken in next(iter(measured.values())))
    ratio = statistics.median(peaks) / base
    return Result(f"{case}: peak", name, "MiB", peaks, ratio, 1.1)


def of_torch(folder: Path, repeats: int) -> list[Result]:
    """Compares planning and restoring 1 GB from a `.pt` file and its `.safetensors` twin."""
    random = np.random.default_rng(0)
    arrays = {name: random.random(shape, np.float32) for name, shape in LARGE.items()}
    twin, torch = folder / "large.safetensors", folder / "large.pt"
    safetensors.numpy.save_file(arrays, twin)
    torch_files.save_arrays(torch, arrays)
    ways = {"loop": (large_assigns, twin), "safetensors": (large, twin), "pt": (large, torch)}
    measured = costs(ways, repeats)
    base = statistics.median(taken.cpu for taken in measured["safetensors"])
    results = [_peak("1 GB", name, measured) for name in measured]
    del measured["loop"]
    for name, taken in measured.items():
        cpu, plan = tuple(each.cpu for each in taken), tuple(each.plan for each in taken)
        peaks = tuple(each.memory for each in taken)
        case, is_torch = f"1 GB in .{name}", name == "pt"
        results.append(Result(case, "plan", "s", plan, limit=0.2 if is_torch else None))
        ratio, limit = statistics.median(cpu) / base, 1.1 if is_torch else None
        results.append(Result(case, "warm_start", "s CPU", cpu, ratio, limit))
        results.append(Result(f"{case}: memory", "warm_start", "MiB", peaks, limit=2 * 16 + 64))
    return shown(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 when a limit is missed."""
    args = options(__doc__, repeats=5).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        results = of_resnet(Path(folder), args.repeats) + of_torch(Path(folder), args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
