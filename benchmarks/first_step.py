"""The first step of `lstm_cnn` in a bare script, and a hook that tells of the runner's first."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import keras
import psutil
import tensorflow.compat.v1 as tf

from benchmarks.bare import bare_graph
from experiments.digits import DigitSequences
from experiments.models import SequenceClassifier


def write_first(file: str) -> None:
    """Writes when the first step was done, and what the process and its children took until then.

    The time is of the clock that all processes of the machine share; the others are the processor
    time in seconds, and the peak of the process's memory in MiB.
    """
    process, path = psutil.Process(), Path(file)
    if not path.exists():
        every = (process, *process.children(recursive=True))
        cpu = sum(sum(child.cpu_times()[:2]) for child in every)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        path.write_text(f"{time.monotonic()} {cpu} {peak}")


class FirstStep(tf.train.SessionRunHook):
    """Writes to a file when the first step was done."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = file

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Writes the first time."""
        write_first(self._file)


def main(file: str) -> None:
    """Builds the graph that the runner builds for the experiment, and takes a step."""
    keras.utils.set_random_seed(0)
    with tf.Graph().as_default():
        bare = bare_graph(
            DigitSequences(batch_size=64, seed=0, length=6, every_step=False),
            SequenceClassifier(every_step=False),
        )
        with tf.Session() as session:
            session.run(bare.initializers)
            session.run(bare.step)
            write_first(file)


if __name__ == "__main__":
    main(sys.argv[1])
