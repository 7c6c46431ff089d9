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

from tests.tiny.experiment import Blobs, Net


class StartTimes(Callback):
    """Appends to a file when each trial starts."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = Path(file)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes the time."""
        write_time(self._file)


def write_time(file: Path) -> None:
    """Appends the time to a file."""
    with file.open("a") as stream:
        stream.write(f"{time.monotonic()!r}\n")


def bare_trial(seed: int, folder: str) -> None:
    """Does what a trial of `tests/tiny/conf/experiment/tiny.yaml` does, and nothing else."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        step = tf.train.get_or_create_global_step()
        data, model = Blobs(seed=seed), Net()

        def forward(features: tf.Tensor, labels: tf.Tensor, training: bool) -> tuple[Any, Any]:
            logits = model(features, training=training)
            loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return loss, keras.metrics.sparse_categorical_accuracy(labels, logits)

        function = tf.function(forward, autograph=False)
        batches = tf.data.make_initializable_iterator(data.train().prefetch(tf.data.AUTOTUNE))
        loss, accuracy = (tf.reduce_mean(each) for each in function(*batches.get_next(), True))
        passes = tf.data.make_initializable_iterator(data.validation())
        sums = [tf.reduce_sum(each) for each in function(*passes.get_next(), False)]
        train_op = tf.train.AdamOptimizer(1e-3).minimize(loss, step)
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), batches.initializer])
            for done in range(1, 21):
                session.run([train_op, loss, accuracy])
                if done % 10 == 0:
                    session.run(passes.initializer)
                    for _ in range(3):  # 20 examples, 8 in a batch
                        session.run(sums)
                    saver.save(session, f"{folder}/model.ckpt", global_step=done)


def main(file: str, count: int) -> None:
    """Carries out so many bare trials and writes when each of them starts."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(count):
            write_time(Path(file))
            bare_trial(seed, folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
