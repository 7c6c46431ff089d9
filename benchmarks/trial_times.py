"""When the trials of a sweep start, and the same tiny trials built and trained by TensorFlow."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow.compat.v1 as tf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from benchmarks.bare import bare_graph
from tests.samples.experiment import Blobs, Net


class StartTimes(Callback):
    """Appends to a file when each trial starts."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = Path(file)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes the times."""
        write_time(self._file)


def write_time(file: Path) -> None:
    """Appends the time, and the processor time of this process, to a file."""
    with file.open("a") as stream:
        stream.write(f"{time.monotonic()!r} {time.process_time()!r}\n")


def bare_trial(seed: int, folder: str) -> None:
    """Does what a trial of `tests/samples/conf/experiment/tiny.yaml` does, and nothing else."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        bare = bare_graph(Blobs(seed=seed), Net())
        with tf.Session() as session:
            session.run(bare.initializers)
            for done in range(1, 21):
                session.run(bare.step)
                if done % 10 == 0:
                    session.run(bare.start_evaluation)
                    for _ in range(3):  # 20 examples, 8 in a batch
                        session.run(bare.evaluation)
                    bare.saver.save(session, f"{folder}/model.ckpt", global_step=done)


def main(file: str, count: int) -> None:
    """Runs some bare trials and writes the times at which they start."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(count):
            write_time(Path(file))
            bare_trial(seed, folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
