"""A step in the runner's loop and in `keras.Model.fit`: `python -m benchmarks.keras_fit`."""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow.compat.v1 as tf
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console

from benchmarks.harness import Result, options, report, shown
from benchmarks.turns import BLOCK, WARM_UP, Turns
from runner.config.composition import register
from runner.config.groups import shipped
from runner.config.schema import RunConfig
from runner.config.validation import validate
from runner.console import Screen
from runner.lifecycle import run_experiment
from runner.training.context import RunContext

NEVER = 10**9
# experiment -> steps in a repeat, and the limit as a share of `fit`'s time.
CASES = {"lstm_cnn": (250, 0.9), "digits_cnn": (1000, 0.7)}


class Fit(keras.callbacks.Callback):
    """`fit` in a separate thread, which takes steps on request.

    Args:
      model: compiled.
      data: makes batches, without end.
    """

    def __init__(self, model: keras.Model, data: Callable[[], tf.data.Dataset]) -> None:
        super().__init__()
        self._wanted, self._go, self._done = 0, threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._fit, args=(model, data))
        self._thread.start()

    def _fit(self, model: keras.Model, data: Callable[[], tf.data.Dataset]) -> None:
        self._wait()
        batches = data().prefetch(tf.data.AUTOTUNE)
        model.fit(batches, steps_per_epoch=NEVER, verbose=0, shuffle=False, callbacks=[self])

    def _wait(self) -> None:
        self._go.acquire()
        self._left = self._wanted

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts, and waits at the end of a block."""
        self._left -= 1
        if self._left <= 0:
            self._done.release()
            self._wait()
            if not self._left:
                self.model.stop_training = True

    def steps(self, count: int) -> None:
        """Takes so many steps."""
        self._wanted = count
        self._go.release()
        self._done.acquire()

    def close(self) -> None:
        """Ends the fit."""
        self._wanted = 0
        self._go.release()
        self._thread.join()


def composed(experiment: str, folder: Path, steps: int) -> tuple[RunConfig, Callable[[], Fit]]:
    """Returns the experiment without its sources, and what makes its model's fit."""
    overrides = [
        f"+experiment={experiment}",
        "resume=never",
        "tracking=none",
        f"run_dir='{folder}/runs'",
        f"train.steps={WARM_UP + steps}",
        f"train.evaluate_every={NEVER}",
        f"train.checkpoint_every={NEVER}",
        "+hooks.turns._target_=benchmarks.turns.Turns",
    ]
    if experiment == "lstm_cnn":
        overrides += ["scaffold@scaffolds.cnn=random", "scaffold@scaffolds.lstm=random"]
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        config = compose("config", overrides)
    plain = OmegaConf.to_container(config, resolve=True)

    def fit() -> Fit:
        nodes = dict(plain) if isinstance(plain, dict) else {}
        model = instantiate(nodes["model"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # As in the run, whose step updates the metrics too.
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
        return Fit(model, instantiate(nodes["data"]).train)

    return validate(config, (experiment,)), fit


def in_turns(experiment: str, folder: Path, steps: int) -> tuple[float, float]:
    """Returns the milliseconds of a step of fit's and of the runner's."""
    config, make = composed(experiment, folder, steps)
    fit = make()
    Turns.other = fit.steps
    try:
        with (folder / "screen").open("w") as screen:
            console = Console(file=screen, width=100, highlight=False)
            run_experiment(config, RunContext(screen=Screen(console)))
    finally:
        fit.close()
    count = steps // BLOCK * BLOCK
    return Turns.theirs.wall / count * 1e3, Turns.ours.wall / count * 1e3


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    arguments = options(__doc__, repeats=5).parse_args()
    tf.get_logger().setLevel("ERROR")
    results: list[Result] = []
    for experiment, (steps, limit) in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            pairs = [in_turns(experiment, Path(name), steps) for _ in range(arguments.repeats)]
        theirs, ours = map(tuple, zip(*pairs, strict=True))
        # Both of a pair took their steps in turns, and met the same load.
        ratio = statistics.median(b / a for a, b in pairs)
        case = f"a step of {experiment}"
        results += shown(
            [
                Result(case, "keras.Model.fit", "ms", theirs),
                Result(case, "runner", "ms", ours, ratio, limit),
            ]
        )
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
