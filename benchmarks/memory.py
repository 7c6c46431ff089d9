"""Memory of runs: its peak beside plain scripts, and its growth: `python -m benchmarks.memory`.

Peaks are those of whole processes, as Linux counts them. A run trains two steps from a file of
weights and saves; the plain script does the same with `load_weights` and `fit`, with MLflow's
callback. Growth is that of resident memory from the first tenth of the steps or trials on.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from benchmarks.harness import Result, compare, options, report, shown

ROOT = Path(__file__).resolve().parent.parent
RUNNER = (
    "-m",
    "runner",
    "--config-dir",
    str(ROOT / "tests" / "samples" / "conf"),
    "+experiment=tiny",
)
MODULE = "benchmarks.memory"
LIMIT = 1.05
GROWTH_LIMIT = 1.05
# SGD shows what a run holds beside weights and gradients, which Adam's slots would hide. With a
# file, a callback writes all weights to it at the end of the epoch.
CASES = (("sgd", ""), ("adam", ""), ("adam", "epoch.weights.h5"))
# Of a model: its class and the shape of an example.
MODELS = {"ResNet-50": ("resnet50", (224, 224, 3)), "1 GB": ("large", (4096,))}


class Batches:
    """Batches of zeros, of two examples each."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)

    def train(self) -> tf.data.Dataset:
        """Returns batches without end."""
        return self.test().repeat()

    def validation(self) -> tf.data.Dataset:
        """Returns one batch."""
        return self.test()

    def test(self) -> tf.data.Dataset:
        """Returns one batch."""
        example = (np.zeros(self._shape, np.float32), 0)
        return tf.data.Dataset.from_tensors(example).repeat(2).batch(2)


def resnet50() -> keras.Model:
    """Builds a ResNet-50 with random values."""
    return keras.applications.ResNet50(weights=None)


def large() -> keras.Model:
    """Builds 16 layers of 64 MiB each."""
    layers = [keras.layers.Dense(4096, use_bias=False) for _ in range(16)]
    return keras.Sequential([keras.Input((4096,)), *layers])


class ResidentSteps(tf.compat.v1.train.SessionRunHook):
    """Writes the resident memory every so many steps."""

    def __init__(self, file: str, every: int) -> None:
        """Stores the file."""
        self._file, self._every, self._steps = Path(file), every, 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a step."""
        self._steps += 1
        if self._steps % self._every == 0:
            write_resident(self._file)


class ResidentTrials(Callback):
    """Writes the resident memory before each trial."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = Path(file)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes it."""
        write_resident(self._file)


def write_resident(file: Path) -> None:
    """Appends the resident memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS"))
    with file.open("a") as stream:
        stream.write(f"{int(line.split()[1]) / 1024}\n")


def plain(name: str, weights: str, way: str, optimizer: str = "sgd", file: str = "") -> None:
    """Trains two steps as a plain script does, or only loads the weights."""
    model = {"resnet50": resnet50, "large": large}[name]()
    if way == "warm_start":
        import runner

        scaffold: Any = {"variables": {"include": ["*"]}, "checkpoint": weights}
        runner.warm_start(model, {"all": scaffold})
        return
    model.load_weights(weights)
    if way == "load":
        return
    import mlflow  # Not above: a run imports this module, and MLflow in another process.

    (shape,) = (shape for model, shape in MODELS.values() if model == name)
    data = Batches(shape)
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    model.compile(optimizer, "sparse_categorical_crossentropy")
    callbacks: list[keras.callbacks.Callback] = [mlflow.tensorflow.MlflowCallback()]
    if file:
        callbacks.append(keras.callbacks.ModelCheckpoint(file, save_weights_only=True))
    with mlflow.start_run():
        model.fit(
            data.train(),
            steps_per_epoch=2,
            validation_data=data.validation(),
            verbose=0,
            callbacks=callbacks,
        )
    model.save_weights("last.weights.h5")


def run(folder: Path, *arguments: str) -> float:
    """Runs Python in a folder and returns the peak of its memory, in MiB.

    Raises:
      RuntimeError: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=environment, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            raise RuntimeError(f"python {' '.join(arguments)} failed: {output.read()[-2000:]}")
    return usage.ru_maxrss / 1024


def trained(folder: Path, name: str, weights: str, optimizer: str, file: str) -> float:
    """Returns the peak of a run that starts from weights and trains two steps."""
    (shape,) = (shape for model, shape in MODELS.values() if model == name)
    target = "_target_: keras.callbacks.ModelCheckpoint, save_weights_only: true"
    callback = f"+callbacks.each={{{target}, filepath: {file}}}"
    return run(
        folder,
        *RUNNER,
        f"model._target_={MODULE}.{name}",
        f"data._target_={MODULE}.Batches",
        "~data.batch_size",
        "~data.seed",
        f"+data.shape={list(shape)}",
        "loss.from_logits=false",
        "~metrics.accuracy",
        f"optimizer={optimizer}",
        "train.steps=2",
        "train.evaluate_every=2",
        "resume=never",
        f"+scaffolds.all={{variables: {{include: ['*']}}, checkpoint: {weights}}}",
        *([callback, "train.steps_per_epoch=2"] if file else []),
    )


def peaks(folder: Path, repeats: int, only: Sequence[str]) -> list[Result]:
    """Compares peaks of processes for both models."""
    results = []
    for case in only:
        name, _ = MODELS[case]
        weights = str(folder / f"{name}.weights.h5")
        run(folder, "-c", f"from {MODULE} import {name}; {name}().save_weights({weights!r})")
        script = partial(run, folder, "-m", MODULE, "--plain", name, weights)
        warm: dict[str, Callable[[], float]] = {
            "load_weights": partial(script, "load"),
            "runner.warm_start": partial(script, "warm_start"),
        }
        limits = {"runner.warm_start": LIMIT, "run": LIMIT}
        results += compare(f"peak of a warm start, {case}", "MiB", warm, limits, repeats)
        for optimizer, file in CASES:
            runs: dict[str, Callable[[], float]] = {
                "plain script": partial(script, "fit", optimizer, file),
                "run": partial(trained, folder, name, weights, optimizer, file),
            }
            title = f"peak of two steps, {case}, {optimizer}{', a callback' if file else ''}"
            results += compare(title, "MiB", runs, limits, repeats)
    return results


def growth(folder: Path, case: str, *arguments: str) -> list[Result]:
    """Compares the last tenth of what a command writes with the second one."""
    file = folder / "resident"
    file.unlink(missing_ok=True)
    run(
        folder,
        *RUNNER,
        "resume=never",
        *(argument.replace("FILE", str(file)) for argument in arguments),
    )
    resident = [float(line) for line in file.read_text().splitlines()]
    tenth = max(len(resident) // 10, 1)
    first, last = resident[tenth : 2 * tenth], resident[-tenth:]
    ratio = statistics.median(last) / statistics.median(first)
    return shown(
        [
            Result(case, "second tenth", "MiB", tuple(first)),
            Result(case, "last tenth", "MiB", tuple(last), ratio, GROWTH_LIMIT),
        ]
    )


def over_steps(folder: Path, steps: int) -> list[Result]:
    """Measures one run."""
    hook = f"{{_target_: {MODULE}.ResidentSteps, file: 'FILE', every: {steps // 100}}}"
    return growth(
        folder,
        f"over {steps:,} steps",
        f"train={{steps: {steps}, log_every: 10, evaluate_every: 1000, checkpoint_every: 1000}}",
        f"+hooks.resident={hook}",
    )


def over_trials(folder: Path, trials: int) -> list[Result]:
    """Measures one sweep, whose trials take two steps."""
    return growth(
        folder,
        f"over {trials} trials",
        "-m",
        f"seed=range({trials})",
        "train.steps=2",
        "train.evaluate_every=2",
        "sweep.figures=false",
        f"+hydra.callbacks.resident._target_={MODULE}.ResidentTrials",
        "+hydra.callbacks.resident.file='FILE'",
    )


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    if sys.argv[1:2] == ["--plain"]:
        plain(*sys.argv[2:])
        return 0
    parser = options(__doc__, repeats=1)
    parser.add_argument("--only", nargs="*", choices=("peaks", "steps", "trials"))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--trials", type=int, default=200)
    args = parser.parse_args()
    cases: dict[str, Callable[[Path], list[Result]]] = {
        "peaks": lambda folder: peaks(folder, args.repeats, args.models),
        "steps": lambda folder: over_steps(folder, args.steps),
        "trials": lambda folder: over_trials(folder, args.trials),
    }
    with tempfile.TemporaryDirectory() as name:
        results = [r for case in args.only or cases for r in cases[case](Path(name))]
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
