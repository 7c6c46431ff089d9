"""The first step of `lstm_cnn` in a bare script, and a hook that tells of the runner's first."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow.compat.v1 as tf

from benchmarks.bare import bare_graph
from experiments.digits import DigitSequences
from experiments.models import SequenceClassifier


class FirstStep(tf.train.SessionRunHook):
    """Writes to a file when the first step was done."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = Path(file)

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Writes the time, on the clock that all processes of the machine share."""
        if not self._file.exists():
            self._file.write_text(repr(time.monotonic()))


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
            Path(file).write_text(repr(time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
